"""Prompts as users give them: what is taken for ids, and how the rest is refused."""

from array import array
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer.errors import RequestError
from deepinfer.front.intake import prompt_token_ids


class Letters:
    """A tokenizer whose ids are code points."""

    def encode(self, text: str) -> list[int]:
        return [0, *map(ord, text)]


def taken(text: Any = None, token_ids: Any = None) -> list[int]:
    return prompt_token_ids(text, token_ids, Letters(), vocab_size=100)  # type: ignore[arg-type]


def test_text_is_encoded() -> None:
    """A prompt loses the token that opens it, or gets two."""
    assert taken("AB") == [0, 65, 66]


@pytest.mark.parametrize(
    "given",
    [
        [5, 99, 0],
        (5, 99, 0),
        array("i", [5, 99, 0]),
        np.array([5, 99, 0]),
        np.array([5, 99, 0], np.uint8),
        [np.int64(5), np.int32(99), 0],
        torch.tensor([5, 99, 0]),
        {5: "a", 99: "b", 0: "c"}.keys(),
        (i for i in (5, 99, 0)),
    ],
    ids=lambda given: type(given).__name__,
)
def test_whole_numbers_of_any_sort(given: Any) -> None:
    """Ids from numpy or torch are refused, or stay in arrays that the engine cannot hash."""
    found = taken(token_ids=given)
    assert found == [5, 99, 0]
    assert {type(one) for one in found} == {int}


def test_ids_count_where_both_are_given() -> None:
    """The text is computed though ids were given to replace it."""
    assert taken("AB", [7]) == [7]


def test_the_caller_keeps_the_list() -> None:
    """The caller's list grows with the answer."""
    given = [5, 6]
    assert taken(token_ids=given) is not given


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ([5, 100], 1),
        ([-1], 0),
        ([5, 6, 2**80], 2),
        ([1.0], 0),
        ([5, True], 1),
        (["5"], 0),
        ([None], 0),
        ([[5]], 0),
        (np.array([1.5]), 0),
        (np.array([[5], [6]]), 0),
        (np.array([True]), 0),
    ],
    ids=repr,
)
def test_what_is_no_id_is_named(given: Any, place: int) -> None:
    """L06: an id outside the vocabulary becomes an index, or the error does not say which it is."""
    with pytest.raises(RequestError, match=f"at place {place} ") as caught:
        taken(token_ids=given)
    assert caught.value.field == "prompt_token_ids"
    assert "from 0 to 99" in caught.value.hint


@pytest.mark.parametrize(
    "given",
    ["12", b"12", 5, 1.5, object(), np.int64(5)],
    ids=lambda given: type(given).__name__,  # an object's own text holds its address
)
def test_what_is_no_list(given: Any) -> None:
    """The bytes or characters of a text are taken for ids."""
    with pytest.raises(RequestError) as caught:
        taken(token_ids=given)
    assert caught.value.field == "prompt_token_ids"


@pytest.mark.parametrize("given", [[], (), np.array([], np.int64)], ids=repr)
def test_no_ids(given: Any) -> None:
    """A request without a row waits for ever."""
    with pytest.raises(RequestError, match="no tokens") as caught:
        taken(token_ids=given)
    assert caught.value.field == "prompt_token_ids"


def test_no_text() -> None:
    """An empty text is answered as if it were a prompt: BOS alone."""
    with pytest.raises(RequestError, match="empty") as caught:
        taken("")
    assert caught.value.field == "prompt"


def test_a_long_wrong_value_is_shown_in_short() -> None:
    """The message carries a megabyte of what it refuses."""
    with pytest.raises(RequestError) as caught:
        taken(token_ids=["x" * 10**6])
    assert len(str(caught.value)) < 300
