"""What `deepinfer` offers. A new name here is a promise, so it is a decision."""

import importlib.metadata

import pytest

import deepinfer

PUBLIC_NAMES = [
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


def test_public_names() -> None:
    """A public name comes or goes by accident."""
    assert sorted(deepinfer.__all__) == sorted(PUBLIC_NAMES)


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_public_name_is_found(name: str) -> None:
    """A name that is found on first use points to a module that moved."""
    assert getattr(deepinfer, name).__name__ == name


def test_unknown_name() -> None:
    """The lazy look-up answers with something else than AttributeError, and hasattr breaks."""
    assert not hasattr(deepinfer, "no_such_name")


def test_version() -> None:
    """The installed package and the source disagree on the version."""
    assert importlib.metadata.version("deepinfer") == deepinfer.__version__


def test_names_can_be_completed() -> None:
    """Names that are found on first use are not seen by anyone who asks what there is."""
    assert set(deepinfer.__all__) <= set(dir(deepinfer))
