"""News of a request become its result: text, tokens, reasons and times in their places."""

from collections.abc import Iterator
from typing import Any

import pytest

from deepinfer.front.collector import Collector
from deepinfer.messages import Delta
from deepinfer.outputs import FinishReason, TokenLogprob
from deepinfer.sampling_params import SamplingParams

EOS = 0


class Letters:
    """A tokenizer whose ids are bytes."""

    eos_id = EOS

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def is_special(self, token_id: int) -> bool:
        return False


def collector(clock: Iterator[float] | None = None, **fields: Any) -> Collector:
    ticks = clock or iter(range(1000))
    tokenizer: Any = Letters()
    return Collector(
        "it", "say", [1, 2, 3], SamplingParams(**fields), tokenizer, clock=lambda: next(ticks)
    )


def tell(
    one: Collector, text: bytes, reason: FinishReason | None = None, choice: int = 0
) -> tuple[str, bool]:
    """A Delta for each byte, the last one with the reason; what the last one gave, texts joined."""
    joined, stopped = "", False
    for place, token_id in enumerate(text, 1):
        ends = reason if place == len(text) else None
        delta = Delta("it", choice, token_id=token_id, finish_reason=ends)
        piece, stopped = one.add(delta)
        joined += piece
    return joined, stopped


def test_text_and_tokens() -> None:
    """A token or its text is lost on the way, or counted twice."""
    one = collector()
    assert tell(one, b"abc") == ("abc", False)
    assert not one.finished
    assert tell(one, b"d", "length") == ("d", False)
    assert one.finished
    output = one.output()
    assert (output.prompt, output.prompt_token_ids, output.request_id) == ("say", [1, 2, 3], "it")
    assert (output.text, output.token_ids) == ("abcd", [*b"abcd"])
    assert (output.finish_reason, output.outputs[0].stop_reason) == ("length", None)
    assert output.logprobs is None
    assert output.prompt_logprobs is None


def test_choices_are_kept_apart() -> None:
    """News of one continuation lands in another; the request ends with the first of them."""
    one = collector(n=3)
    for text, choice in ((b"x", 2), (b"a", 0), (b"mn", 1), (b"y", 2)):
        tell(one, text, choice=choice)
    for choice in (1, 0, 2):
        assert not one.finished
        tell(one, b"!", "length", choice)
    assert one.finished
    assert [part.text for part in one.output().outputs] == ["a!", "mn!", "xy!"]
    assert [part.index for part in one.output().outputs] == [0, 1, 2]


def test_a_stop_string_ends_it() -> None:
    """H01, H06: the engine is not told, so tokens go on; or a part of the string gets out."""
    one = collector(stop=["END"])
    assert tell(one, b"so E") == ("so ", False)
    assert tell(one, b"N") == ("", False)
    assert tell(one, b"D") == ("", True)
    assert one.finished
    (part,) = one.output().outputs
    assert (part.text, part.finish_reason, part.stop_reason) == ("so ", "stop", "END")
    assert part.token_ids == [*b"so END"]


def test_a_stop_string_in_the_last_token_allowed() -> None:
    """K08: an answer that ends itself at the limit is called cut off, or is ended twice."""
    one = collector(stop=["b"])
    assert tell(one, b"ab", "length") == ("a", False)
    assert (one.output().finish_reason, one.output().text) == ("stop", "a")


def test_the_beginning_of_a_stop_string_at_the_end() -> None:
    """H03: text that was held back is lost when the answer ends without the rest."""
    one = collector(stop=["END"])
    assert tell(one, b"so EN", "length") == ("so EN", False)
    assert one.output().outputs[0].stop_reason is None


def test_held_text_of_an_answer_that_ends_without_a_token() -> None:
    """H03, A14: the same where the model's numbers broke."""
    one = collector(stop=["END"])
    tell(one, b"so EN")
    assert one.add(Delta("it", 0, finish_reason="error")) == ("EN", False)
    (part,) = one.output().outputs
    assert (part.text, part.finish_reason, part.token_ids) == ("so EN", "error", [*b"so EN"])


def test_half_a_character_at_the_end() -> None:
    """H09: a cut character vanishes, or completes a stop string that nobody looks for."""
    one = collector()
    assert tell(one, "aé".encode()[:2], "length") == ("a\ufffd", False)
    one = collector(stop=["\ufffd"])
    assert tell(one, "aé".encode()[:2], "length") == ("a", False)
    (part,) = one.output().outputs
    assert (part.finish_reason, part.stop_reason) == ("stop", "\ufffd")


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("token_id", "stop_reason"), [(EOS, None), (ord("!"), ord("!"))])
def test_end_tokens(token_id: int, stop_reason: int | None, include: bool) -> None:
    """H04: the end token's spelling is said aloud, or its id is missing."""
    one = collector(stop_token_ids=[ord("!")], include_stop_str_in_output=include)
    said = chr(token_id) if include else ""
    assert tell(one, bytes([97, token_id]), "stop") == (f"a{said}", False)
    (part,) = one.output().outputs
    assert (part.text, part.token_ids) == (f"a{said}", [97, token_id])
    assert (part.finish_reason, part.stop_reason) == ("stop", stop_reason)


def test_an_end_token_as_one_of_the_stop_tokens() -> None:
    """The end token that the caller named as well is not reported as such."""
    one = collector(stop_token_ids=[EOS])
    tell(one, bytes([97, EOS]), "stop")
    assert one.output().outputs[0].stop_reason == EOS


@pytest.mark.parametrize("stop", [None, ["xyz"]])
def test_left_early(stop: list[str] | None) -> None:
    """K04: what there is of an answer that was given up looks complete."""
    one = collector(stop=stop, n=2)
    tell(one, b"ab", choice=1)
    tell(one, b"c", "length", 0)
    output = one.output()
    assert [part.finish_reason for part in output.outputs] == ["length", "abort"]
    assert [part.text for part in output.outputs] == ["c", "ab"]


def test_logprobs() -> None:
    """G09: a token's log-probability is missing, or is of its neighbour."""
    scores = [TokenLogprob(i, -0.5 * i, i) for i in range(3)]
    one = collector(logprobs=True)
    assert one.output().logprobs == []
    for place, score in enumerate(scores):
        reason: FinishReason | None = "length" if place == 2 else None
        one.add(Delta("it", 0, token_id=97 + place, logprob=score, finish_reason=reason))
    assert one.output().logprobs == scores


def test_prompt_logprobs() -> None:
    """G10: parts of a long prompt come out of order, or the first token has one."""
    scores = [TokenLogprob(i, -1.0 * i, 1) for i in range(2)]
    one = collector(prompt_logprobs=True)
    one.add(Delta("it", 0, prompt_logprobs=scores[:1]))
    one.add(Delta("it", 0, prompt_logprobs=scores[1:]))
    tell(one, b"a", "length")
    assert one.output().prompt_logprobs == [None, *scores]


def test_times() -> None:
    """The time to the first token is that of the last, or of the prompt's first part."""
    one = collector(clock=iter([10.0, 13.0, 17.0]), prompt_logprobs=True)
    one.add(Delta("it", 0, prompt_logprobs=[TokenLogprob(1, -1.0, 1)]))
    tell(one, b"ab", "length")
    timings = one.output().timings
    assert timings is not None
    assert (timings.arrival_s, timings.first_token_s, timings.finished_s) == (10.0, 13.0, 17.0)


def test_no_first_token() -> None:
    """A request that ended before its first token pretends to have had one."""
    one = collector(clock=iter([10.0, 17.0]))
    one.add(Delta("it", 0, finish_reason="error"))
    timings = one.output().timings
    assert timings is not None
    assert timings.first_token_s is None
