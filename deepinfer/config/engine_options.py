"""The options of `EngineArgs` on the command line, for every command that loads a model.

One table says what each is called and for. Knows typer and the fields' defaults; checks nothing:
a value that cannot be honoured is refused where all options are checked.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final, get_args

import typer

from deepinfer.config.engine import EngineArgs
from deepinfer.config.words import (
    Accept,
    ActQuant,
    Device,
    DraftSchedule,
    Dtype,
    EngramMemory,
    LoadFormat,
    PrefixReplay,
    Replay,
    WeightDtype,
)
from deepinfer.errors import ConfigError


def _words(of: Any) -> str:
    return " | ".join(get_args(of))


_BYTES: Final = "whole number of bytes"
# field: (type on the command line, help), in the order of --help.
OPTIONS: Final[Mapping[str, tuple[Any, str]]] = {
    "device": (str, _words(Device)),
    "dtype": (str, f"{_words(Dtype)}: computed in."),
    "weight_dtype": (str, f"{_words(WeightDtype)}: how weights are kept."),
    "act_quant": (str, f"{_words(ActQuant)}: round activations as the release does."),
    "load_format": (str, f"{_words(LoadFormat)}: dummy fills the model with random weights."),
    "expert_shard": (
        str | None,
        "i/n: hold one of n shares of the experts, to measure a rank.",
    ),
    "layers": (str | None, "a:b: hold layers a to b - 1 alone, to measure a rank."),
    "engram_memory": (str, f"{_words(EngramMemory)}: where Engram's tables are."),
    "max_model_len": (int | None, "Most tokens of prompt and output together."),
    "max_num_seqs": (int, "Most sequences that run at once."),
    "max_num_batched_tokens": (int | None, "Most rows of a step. Default: by device."),
    "kv_cache_bytes": (int | None, f"Memory for blocks and slots, {_BYTES}. Default: by device."),
    "gpu_memory_utilization": (float, "On a GPU, the share of free memory for the caches."),
    "async_scheduling": (
        bool | None,
        "Plan and launch a step while the one before runs. Default: on beside a GPU.",
    ),
    "batch_invariant": (bool | None, "No row depends on its batch. Default: on on a CPU."),
    "enforce_eager": (bool | None, "On a GPU: no CUDA graphs, steps run op by op."),
    "num_threads": (int | None, "CPU threads. Default: by the model's width."),
    "replay": (
        str | None,
        f"{_words(Replay)}: how little of a long prompt the decoder half reads. Default: off.",
    ),
    "keep_tokens": (int | None, "Tokens of a prompt that replay keeps. Default: 140."),
    "enable_prefix_caching": (bool, "Keep what was computed for prompts that begin alike."),
    "prefix_replay": (
        str | None,
        f"{_words(PrefixReplay)}: how the end of a cached prefix is run again. "
        "Default: exact on a CPU, else bounded.",
    ),
    "kv_host_bytes": (int, f"Host memory behind the cache, {_BYTES}."),
    "kv_disk_dir": (str | None, "Folder behind that; it outlives the process."),
    "kv_disk_bytes": (int, f"Room in that folder, {_BYTES}."),
    "draft_schedule": (
        str | None,
        f"{_words(DraftSchedule)}: drafts to verify. Default: fixed, if the model can draft.",
    ),
    "num_drafts": (int | None, "Drafts at once, 1 to 5. Default: 5."),
    "accept": (str, f"{_words(Accept)}: how drafts are accepted."),
}
_DEFAULTS: Final = {field.name: field.default for field in fields(EngineArgs)}


def engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose parameter `engine` is a dict of all options -> one that typer understands.

    The options stand in `--help` where `engine` stands among the parameters. One that is named like
    another parameter of the command is left out.
    """
    own = signature(command).parameters
    names = [name for name in OPTIONS if name not in own]

    @wraps(command)
    def run(**values: Any) -> Any:
        engine = {name: values.pop(name) for name in names}
        return command(engine=engine, **values)

    parameters: list[Parameter] = []
    for name, parameter in own.items():
        parameters += map(_parameter, names) if name == "engine" else [parameter]
    shown = signature(command).replace(parameters=parameters)
    run.__signature__ = shown  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def refuse_for_a_server(engine: Mapping[str, Any]) -> None:
    """Raise ConfigError for an option that was given to a command which asks a server elsewhere:
    that server's engine has options of its own."""
    for name, value in engine.items():
        if value != _DEFAULTS[name]:
            raise ConfigError(
                f"found {value!r}, but the server's engine has started already",
                where=f"--{name.replace('_', '-')}",
                hint="give it to deepinfer serve, or leave out the URL",
            )


def _parameter(name: str) -> Parameter:
    kind, text = OPTIONS[name]
    annotation: Any = Annotated[kind, typer.Option(help=text)]
    return Parameter(
        name, Parameter.POSITIONAL_OR_KEYWORD, default=_DEFAULTS[name], annotation=annotation
    )
