"""Tokens to text: characters stay whole, control tokens stay apart."""

import pytest

from deepinfer.outputs import TokenLogprob
from deepinfer.recipe.conversation import SpecialTokens
from deepinfer.recipe.token_runs import DSML, OTHER_CONTROL, THINKING_END, TokenRun, TokenRuns
from tests.unit.recipe.replay import ByteTokenizer

TOKENIZER = ByteTokenizer()
IDS = TOKENIZER.control_ids
CHARACTERS = ["a", "é", "語", "😀"]


def runs(*pushes: list[int]) -> list[list[TokenRun]]:
    decoder = TokenRuns(TOKENIZER, SpecialTokens())
    return [*(decoder.push(ids, None) for ids in pushes), decoder.finish()]


@pytest.mark.parametrize("character", CHARACTERS)
def test_character_waits_for_its_bytes(character: str) -> None:
    """A character arrives as two replacement marks."""
    *first, last = character.encode()
    made = runs(*([byte] for byte in first), [last])
    assert made == [*([] for _ in first), [TokenRun(character, len(first) + 1)], []]


@pytest.mark.parametrize("character", CHARACTERS[1:])
def test_half_a_character_at_the_end(character: str) -> None:
    """The end of an answer is lost with the half character after it, or shows a mark for it."""
    half = list(character.encode()[:-1])
    assert runs(half) == [[], []]
    assert runs([*b"ab", *half]) == [[], [TokenRun("ab", 2 + len(half))]]


def test_broken_bytes_are_marked() -> None:
    """Bytes that never were UTF-8 end a stream, or make all that follows wait."""
    assert runs([0xFF], list(b"a")) == [[TokenRun("\ufffd", 1)], [TokenRun("a", 1)], []]
    assert runs([0xC3], list(b"a")) == [[], [TokenRun("\ufffda", 2)], []]
    user = IDS[SpecialTokens().user]
    shown = TokenRun(OTHER_CONTROL, 1, SpecialTokens().user)
    assert runs([0xC3, user, *b"a"]) == [[TokenRun("\ufffd", 1), shown, TokenRun("a", 1)], []]


def test_control_tokens_are_apart() -> None:
    """A pattern finds a control token in what only looks like one."""
    spelled = SpecialTokens()
    ids = [*b"a", IDS[spelled.thinking_end], *b"<", IDS[spelled.dsml], IDS[spelled.system]]
    assert runs(ids, list(spelled.dsml.encode())) == [
        [
            TokenRun("a", 1),
            TokenRun(THINKING_END, 1, spelled.thinking_end),
            TokenRun("<", 1),
            TokenRun(DSML, 1, spelled.dsml),
            TokenRun(OTHER_CONTROL, 1, spelled.system),
        ],
        [TokenRun(spelled.dsml, len(spelled.dsml.encode()))],
        [],
    ]


def test_end_token_shows_nothing() -> None:
    """The end-of-sequence token is read as the last word of the answer."""
    eos = SpecialTokens().eos
    assert runs([*b"a", IDS[eos]]) == [[TokenRun("a", 1), TokenRun("", 1, eos)], []]


def test_logprobs_go_with_their_run() -> None:
    """The log-probability of a token is shown beside another's text."""
    decoder = TokenRuns(TOKENIZER, SpecialTokens())
    end = IDS["</think>"]
    ids = [*"aé".encode(), end]
    first, control = decoder.push(ids, [TokenLogprob(i, -1.0, 1) for i in ids])
    assert [entry["token"] for entry in first.logprobs] == ["a", "\\xc3", "\\xa9"]
    assert [entry["bytes"] for entry in first.logprobs] == [[97], [0xC3], [0xA9]]
    assert [entry["token"] for entry in control.logprobs] == ["</think>"]
