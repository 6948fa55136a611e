"""DeepInfer: an inference engine for DeepSeek-V4.1-Flash.

Public names are found on first use, so that `import deepinfer` is cheap and never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

__all__ = [
    "LLM",
    "ChatOutput",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "DeepInferError",
    "EngineArgs",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
]

_HOMES = {
    "ChatOutput": "front.chat",
    "CheckpointError": "errors",
    "CompletionOutput": "outputs",
    "ConfigError": "errors",
    "DeepInferError": "errors",
    "EngineArgs": "config.engine",
    "LLM": "entrypoints.llm",
    "RequestError": "errors",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
}

if TYPE_CHECKING:
    from deepinfer.config.engine import EngineArgs
    from deepinfer.entrypoints.llm import LLM
    from deepinfer.errors import CheckpointError, ConfigError, DeepInferError, RequestError
    from deepinfer.front.chat import ChatOutput
    from deepinfer.outputs import CompletionOutput, RequestOutput
    from deepinfer.sampling_params import SamplingParams


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
    return getattr(import_module(f"deepinfer.{_HOMES[name]}"), name)
