"""The errors: each says what, where and the way out, here and in another process."""

import copy
import pickle
import subprocess
import sys

import pytest

from deepinfer.errors import CheckpointError, ConfigError, DeepInferError, RequestError

EXAMPLES = [
    ConfigError("found 3", where="config.json: top", hint="take 2"),
    CheckpointError("is cut off", where="model.safetensors", hint="download it again"),
    RequestError("found -1", field="top_p", hint="expected more"),
]


def kind(error: DeepInferError) -> str:
    return type(error).__name__


@pytest.mark.parametrize("error", EXAMPLES, ids=kind)
def test_message_has_all_three(error: DeepInferError) -> None:
    """N10: a message names the symptom and leaves the place or the way out to the reader."""
    assert str(error) == f"{error.where}: {error.what}\n  hint: {error.hint}"
    assert isinstance(error, DeepInferError)


def test_request_error_has_its_field() -> None:
    """A server cannot tell its client which field was wrong."""
    error = RequestError("found -1", field="top_p", hint="expected more")
    assert error.field == error.where == "top_p"


@pytest.mark.parametrize("error", EXAMPLES, ids=kind)
@pytest.mark.parametrize(
    "again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy], ids=["pickle", "copy"]
)
def test_crosses_a_process_border(error: DeepInferError, again) -> None:
    """O05: the error of another process arrives as a failure to unpickle it, and its cause is
    lost.
    """
    came = again(error)
    assert type(came) is type(error)
    assert (str(came), vars(came)) == (str(error), vars(error))


@pytest.mark.parametrize("name", ["what", "where", "hint"])
def test_nothing_can_be_left_out(name: str) -> None:
    """An error without a place or a hint is raised somewhere, and nobody notices."""
    given = {"what": "a", "where": "b", "hint": "c"}
    del given[name]
    with pytest.raises(TypeError):
        ConfigError(**given)  # type: ignore[call-arg,misc]


def test_host_world_is_free_of_torch() -> None:
    """Errors, parameters and outputs pull torch in, and a program that only asks becomes slow."""
    code = (
        "import sys, deepinfer; deepinfer.RequestError, deepinfer.SamplingParams, "
        "deepinfer.RequestOutput, deepinfer.EngineArgs; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
