"""`RequestOutput`: the first continuation by short names, or the request's own error."""

from dataclasses import FrozenInstanceError

import pytest

from deepinfer.errors import RequestError
from deepinfer.outputs import CompletionOutput, RequestOutput

FIRST = CompletionOutput(0, "one", [5, 1], "stop")
SECOND = CompletionOutput(1, "two", [6], "length")
SHORT_NAMES = ("text", "token_ids", "finish_reason")


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_short_names(name: str) -> None:
    """A short name shows another continuation than the first, or another field."""
    output = RequestOutput("x", [3], [FIRST, SECOND])
    assert output.error is None
    assert getattr(output, name) == getattr(FIRST, name)


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_refused(name: str) -> None:
    """I06: the answer of a refused request reads like an empty one."""
    error = RequestError("too long", field="prompt", hint="shorten it")
    output = RequestOutput("x", [], [], error)
    with pytest.raises(RequestError) as caught:
        getattr(output, name)
    assert caught.value is error


def test_frozen() -> None:
    """A reader changes what another reader of the same result sees."""
    with pytest.raises(FrozenInstanceError):
        FIRST.text = "three"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        RequestOutput("x", [3], [FIRST]).prompt = "y"  # type: ignore[misc]
