"""Text out: stop strings over any cut, nothing held that need not be, nothing after the stop."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.front.stream import TextStream


class Bytes:
    """A tokenizer whose ids are bytes, and above them the texts it was given."""

    def __init__(self, *texts: str | bytes) -> None:
        self.texts = [text.encode() if isinstance(text, str) else text for text in texts]
        self.special: set[int] = set()

    def token_bytes(self, token_id: int) -> bytes:
        if not 0 <= token_id < 256 + len(self.texts):
            raise RequestError("no such token", field="token_ids", hint="take another")
        return bytes([token_id]) if token_id < 256 else self.texts[token_id - 256]

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special


def stream_of(*texts: str | bytes, **options: object) -> tuple[TextStream, range]:
    """A stream, and the ids of `texts` in order."""
    stream = TextStream(Bytes(*texts), **options)  # type: ignore[arg-type]
    return stream, range(256, 256 + len(texts))


def plain(text: str, stops: Iterable[str], include: bool) -> tuple[str, str | None]:
    """The whole text at once: the stop that ends first, the first in the list on a tie."""
    found = [(text.find(stop) + len(stop), i, stop) for i, stop in enumerate(stops) if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include else end - len(stop)], stop


def is_beginning(held: str, stops: Iterable[str]) -> bool:
    return any(stop.startswith(held) and stop != held for stop in stops)


LETTERS = st.text("abé€😀", max_size=24)
STOPS = st.lists(st.text("abé€😀", min_size=1, max_size=4), max_size=4)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(text=LETTERS, stops=STOPS, include=st.booleans(), data=st.data())
def test_stream_equals_whole_text(
    text: str, stops: list[str], include: bool, data: st.DataObject
) -> None:
    """H01, H02, H03, H09: cuts between tokens or inside characters change the text, a stop is
    missed, its beginning gets out, or more is held back than may become a stop."""
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stream, ids = stream_of(*tokens, stop=stops, include_stop=include)
    expected, stop = plain(text, stops, include)
    joined, arrived = "", b""
    for token_id, token in zip(ids, tokens, strict=True):
        joined += stream.push([token_id])
        arrived += token
        assert expected.startswith(joined)
        if stream.stop_reason is None:
            whole = arrived.decode(errors="ignore")
            assert whole.startswith(joined)
            held = whole[len(joined) :]
            assert held == "" or is_beginning(held, stops)
    joined += stream.finish()
    assert (joined, stream.stop_reason) == (expected, stop)
    assert stream.text == joined


@settings(max_examples=100, deadline=None, derandomize=True)
@given(text=LETTERS, stops=STOPS, data=st.data())
def test_calls_do_not_matter(text: str, stops: list[str], data: st.DataObject) -> None:
    """H04: a block of accepted drafts gives another text than its tokens one by one."""
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    one = TextStream(Bytes(), stop=stops)  # type: ignore[arg-type]
    blocks = TextStream(Bytes(), stop=stops)  # type: ignore[arg-type]
    for byte in raw:
        one.push([byte])
    for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        blocks.push(raw[a:b])
    assert one.finish() == blocks.finish()
    assert one.text == blocks.text
    assert one.num_tokens == blocks.num_tokens
    assert one.stop_reason == blocks.stop_reason


@pytest.mark.parametrize("length", range(1, 13))
def test_stop_at_every_cut(length: int) -> None:
    """H01: a stop of some length, cut at some place, gets out in part."""
    stop = "</answer> \n!"[:length]
    text = f"so it is {stop} and more"
    for cut in range(1, len(text)):
        stream, ids = stream_of(text[:cut], text[cut:], stop=[stop])
        assert "".join(stream.push([token_id]) for token_id in ids) == "so it is "
        assert stream.stop_reason == stop
        assert stream.finish() == ""


@pytest.mark.parametrize("include", [False, True])
def test_stop_is_the_whole_output(include: bool) -> None:
    """H01: an answer that is nothing but the stop."""
    stream, ids = stream_of("EN", "D", stop=["END"], include_stop=include)
    assert stream.push(ids) == ("END" if include else "")
    assert stream.num_tokens == 2


def test_stop_split_inside_a_character() -> None:
    """H02: a stop with characters of several bytes, each byte a token of its own."""
    for stop in ("😀", "é", "x😀é", "€\n"):
        stream = TextStream(Bytes(), stop=[stop])  # type: ignore[arg-type]
        assert stream.push(f"ab{stop}cd".encode()) == "ab"
        assert stream.stop_reason == stop
        assert stream.num_tokens == len(f"ab{stop}".encode())


def test_nothing_after_the_stop() -> None:
    """H04: tokens of the same block or of later steps, or half a character, follow the stop."""
    stream, ids = stream_of("one ", "st", "op two", "three", b"\xf0\x9f", stop=["stop"])
    assert stream.push(ids[:4]) == "one "
    assert stream.push(ids[4:]) == ""
    assert stream.finish() == ""
    assert stream.text == "one "
    # The token that completed the stop is the last that counts.
    assert stream.num_tokens == 3


def test_flush_is_searched_too() -> None:
    """H03: what is held at the end is written raw, past the stop strings."""
    stream = TextStream(Bytes(), stop=["\ufffd"])  # type: ignore[arg-type]
    assert stream.push(b"ab\xf0\x9f") == "ab"
    assert stream.finish() == ""
    assert stream.stop_reason == "\ufffd"
    stream = TextStream(Bytes(), stop=["</s>"])  # type: ignore[arg-type]
    assert stream.push(b"ab</s\xf0") == "ab"
    assert stream.finish() == "</s\ufffd"
    assert stream.stop_reason is None


def test_long_stop_holds_nothing_without_need() -> None:
    """H03: text is late by the length of the longest stop."""
    stream = TextStream(Bytes(), stop=["z" * 40, "abc"])  # type: ignore[arg-type]
    assert stream.push(b"hello a") == "hello "
    assert stream.push(b"b") == ""
    assert stream.push(b"b") == "abb"


@pytest.mark.parametrize(
    ("stops", "text", "kept", "reason"),
    [
        (["b", "ab"], "xab", "xa", "b"),  # complete at once: the first in the list
        (["ab", "b"], "xab", "x", "ab"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # complete first
        (["bc", "ab"], "xabc", "x", "ab"),
        (["aab"], "aaab", "a", "aab"),  # the beginning of a match inside another
        (["abab!", "bac"], "ababac", "aba", "bac"),
        (["a", "a"], "ba", "b", "a"),
    ],
)
def test_which_stop_wins(stops: list[str], text: str, kept: str, reason: str) -> None:
    """H01: with several stops the winner depends on how tokens cut the text."""
    for tokens in ([text], list(text)):
        stream, ids = stream_of(*tokens, stop=stops)
        assert stream.push(ids) + stream.finish() == kept
        assert stream.stop_reason == reason


def test_min_tokens() -> None:
    """A stop that completes too early ends the answer, or is then never found."""
    stream, ids = stream_of("a", "END", "b EN", "D c", stop=["END"], min_tokens=2)
    assert stream.push(ids[:2]) == "aEND"
    assert stream.stop_reason is None
    assert stream.push(ids[2:]) == "b "
    assert (stream.stop_reason, stream.num_tokens) == ("END", 4)
    # It may begin among the first tokens, if it does not end there; also inside one that did.
    stream, ids = stream_of("a", "a", "a", "b", stop=["aa"], min_tokens=2)
    assert stream.push(ids) == "a"
    stream, ids = stream_of("aE", "ND", stop=["END"], min_tokens=1)
    assert stream.push(ids) == "a"


def test_tokens_alone_are_enough() -> None:
    """H06: a caller who reads only token ids gets no stop."""
    stream, ids = stream_of("a", "b", "END", "c", stop=["END"])
    for token_id in ids:
        stream.push([token_id])
    assert stream.num_tokens == 3
    assert [*ids][: stream.num_tokens] == [256, 257, 258]


def test_no_half_characters() -> None:
    """H09: a replacement mark in the middle of a good character, or a lost one."""
    for text in ("é", "€", "😀", "中文字"):
        stream = TextStream(Bytes(), stop=["never"])  # type: ignore[arg-type]
        pieces = [stream.push([byte]) for byte in text.encode()]
        assert [piece for piece in pieces if piece] == list(text)
        assert stream.finish() == ""
    stream = TextStream(Bytes(), stop=["never"])  # type: ignore[arg-type]
    assert stream.push("😀".encode()[:3]) == ""
    assert stream.finish() == "\ufffd"  # max_tokens ended it inside a character


def test_special_tokens() -> None:
    """H03: the spelling of a control token shows though it was to be left out."""
    tokenizer = Bytes("<end>", "x")
    tokenizer.special = {256}
    stream = TextStream(tokenizer, stop=["<end>"], skip_special=True)  # type: ignore[arg-type]
    assert stream.push([257, 256, 257]) == "xx"
    stream = TextStream(tokenizer, stop=["<end>"])  # type: ignore[arg-type]
    assert stream.push([257, 256, 257]) == "x"


def test_unknown_token_counts_for_nothing() -> None:
    """An id that the model does not have is counted before it is refused."""
    stream, ids = stream_of("a", stop=["b"])
    stream.push(ids)
    with pytest.raises(RequestError):
        stream.push([999])
    assert stream.num_tokens == 1
