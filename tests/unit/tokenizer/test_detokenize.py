"""Streaming text: the same characters as all at once, never half of one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.tokenizer.detokenize import Detokenizer
from deepinfer.tokenizer.tokenizer import Tokenizer

FIRST_BYTES = [0x41, 0x80, 0xA9, 0xBF, 0xC0, 0xC3, 0xE0, 0xE6, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF]
any_bytes = st.one_of(
    st.binary(max_size=24),
    st.lists(st.sampled_from(FIRST_BYTES), max_size=24).map(bytes),  # most are nearly UTF-8
    st.text(max_size=8).map(str.encode),
)


@pytest.fixture(scope="module")
def byte_ids(toy: Tokenizer) -> list[int]:
    """The id of each single byte's token."""
    id_of = {toy.token_bytes(i): i for i in range(toy.vocab_len)}
    return [id_of[bytes([byte])] for byte in range(256)]


def pushed(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = False) -> list[str]:
    stream = Detokenizer(tokenizer, skip_special=skip_special)
    return [*map(stream.push, ids), stream.finish()]


@given(any_bytes)
def test_bytes_one_by_one(toy: Tokenizer, byte_ids: list[int], data: bytes) -> None:
    """A character cut over tokens is garbled, doubled or lost in the stream."""
    pieces = pushed(toy, [byte_ids[byte] for byte in data])
    assert "".join(pieces) == data.decode(errors="replace")


@given(st.lists(st.integers(0, 511), max_size=24), st.booleans())
def test_any_ids(toy: Tokenizer, ids: list[int], skip_special: bool) -> None:
    """Streamed and non-streamed text differ, control tokens amid a character included."""
    pieces = pushed(toy, ids, skip_special=skip_special)
    assert "".join(pieces) == toy.decode(ids, skip_special=skip_special)


@given(st.text(max_size=12))
def test_pieces_are_whole_characters(toy: Tokenizer, byte_ids: list[int], text: str) -> None:
    """A character comes late, although it is complete, or early, as U+FFFD."""
    stream = Detokenizer(toy)
    for char in text:
        *first, last = char.encode()
        assert [stream.push(byte_ids[byte]) for byte in first] == [""] * len(first)
        assert stream.push(byte_ids[last]) == char
    assert stream.finish() == ""


def test_replacement_comes_as_soon_as_it_is_certain(toy: Tokenizer, byte_ids: list[int]) -> None:
    """A bad byte is held back to the end, and the stream seems to hang."""
    assert pushed(toy, [byte_ids[0xFF]]) == ["\ufffd", ""]
    assert pushed(toy, [byte_ids[0xE6], byte_ids[0x41]]) == ["", "\ufffdA", ""]
    surrogate_half = [byte_ids[0xED], byte_ids[0xA0], byte_ids[0x41]]
    assert pushed(toy, surrogate_half) == ["", "", "\ufffd\ufffdA", ""]


def test_answer_that_ends_inside_a_character(toy: Tokenizer, byte_ids: list[int]) -> None:
    """The last bytes are lost, or spoil the next use of the object."""
    stream = Detokenizer(toy)
    assert [stream.push(byte_ids[0xE6]), stream.push(byte_ids[0xB7])] == ["", ""]
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
    assert stream.push(byte_ids[0x41]) == "A"


def test_id_outside_the_vocabulary(toy: Tokenizer) -> None:
    """An IndexError in the middle of a stream."""
    with pytest.raises(RequestError, match="512"):
        Detokenizer(toy).push(512)
