"""Strings of JSON with limits on characters and length, against Python's own reader of JSON."""

import json
import random

import pytest

from deepinfer.errors import RequestError
from deepinfer.structured import charset
from deepinfer.structured.grammar import Alt, Expr, Grammar, Seq, Text
from deepinfer.structured.grammar_check import check
from deepinfer.structured.grammar_write import write
from deepinfer.structured.json_string import (
    MAX_LENGTH,
    MAX_PLACES,
    SHARED_RULES,
    edge,
    string_rules,
)
from tests.unit.structured.languages import STOP, accepts, allowed, new_matcher

CONTROLS = [chr(code) for code in range(0x20)]
SPECIAL = ['"', "\\", "/", "a", "\x7f", "é", "\u2028", "\ud7ff", "\ue000", "\uffff", "\U0001f600"]


def one_of(chars: charset.CharSet) -> str:
    """The text of a grammar: a quoted string of one character of the set."""
    string = Seq((Text('"'), edge(chars), Text('"')))
    return write(Grammar({"root": string, **SHARED_RULES}, "root"))


def string_text(low: int, high: int | None) -> str:
    grammar = Grammar({**string_rules("s", low, high), **SHARED_RULES}, "s")
    check(grammar)
    return write(grammar)


def spellings(char: str) -> list[str]:
    """All that JSON allows for a character."""
    units = char.encode("utf-16-be").hex()
    lower = "".join(rf"\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    mixed = lower.upper().replace("U", "u")
    short = [rf"\{letter}" for letter in '"\\/bfnrt' if json.loads(rf'"\{letter}"') == char]
    raw = [] if char in '"\\' or char < " " else [char]
    return list(dict.fromkeys([*raw, *short, lower, mixed]))


@pytest.mark.parametrize("char", CONTROLS + SPECIAL)
def test_any_character_has_all_its_spellings(char):
    """With a limit on the length, quotes and line breaks cannot be written at all (D05)."""
    text = one_of(charset.ALL)
    for spelled in spellings(char):
        assert json.loads(f'"{spelled}"') == char
        assert accepts(text, f'"{spelled}"'), spelled


@pytest.mark.parametrize(
    "inside", [*CONTROLS, '"', "\\", r"\x41", r"\'", r"\u12", r"\U0041", r"\0", ""]
)
def test_what_is_no_character_of_json_is_refused(inside):
    """A raw control character makes the answer unreadable to every client (D05)."""
    assert not accepts(one_of(charset.ALL), f'"{inside}"')


def test_lone_surrogates_are_never_spelled():
    """Half a pair is read by some clients and refused by others."""
    text = one_of(charset.ALL)
    for high, low, fine in (
        ("d83d", "de00", True), ("D83D", "DE00", True), ("dBfF", "dfff", True),
        ("d800", "dc00", True),
        ("d83d", "", False), ("", "de00", False), ("de00", "d83d", False), ("d83d", "d83d", False),
        ("d83d", "0041", False), ("D7ff", "", True), ("e000", "", True),
    ):  # fmt: skip
        word = "".join(rf"\u{half}" for half in (high, low) if half)
        assert accepts(text, f'"{word}"') == fine, word


def test_a_small_set_holds_no_other_character():
    """An escape spells a character that the pattern does not allow."""
    dice = random.Random(5)
    everything = CONTROLS + SPECIAL
    for _ in range(12):
        chosen = dice.sample(everything, dice.randint(1, 8))
        inside = charset.of("".join(chosen))
        for chars, has in (
            (inside, chosen),
            (charset.complement(inside), [char for char in everything if char not in chosen]),
        ):
            text = one_of(chars)
            for char in everything:
                found = [accepts(text, f'"{spelled}"') for spelled in spellings(char)]
                assert any(found) == (char in has), char
                # What must be escaped has all its escapes.
                assert char not in has or not (char < " " or char in '"\\') or all(found)


def random_string(dice: random.Random, length: int) -> str:
    chars = dice.choices(
        ["a", "é", "\U0001f600", "\n", '"', "\\", "\x01"], [9, 9, 9, 1, 1, 1, 1], k=length
    )
    return '"' + "".join(dice.choice(spellings(char)) for char in chars) + '"'


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (0, 1), (1, 1), (0, 7), (3, 9), (8, 8), (0, None), (4, None), (30, MAX_PLACES)],
)
def test_small_limits_are_exact(low, high):
    """A string that is one character too long passes, or one that fits is refused."""
    text, dice = string_text(low, high), random.Random(low)
    longest = low + 3 if high is None else high + 2
    for length in range(longest + 1):
        fits = low <= length and (high is None or length <= high)
        for word in (
            random_string(dice, length),
            '"' + r"\n" * length + '"',
            '"' + "a" * length + '"',
        ):
            assert accepts(text, word) == fits, (word, length)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 100), (5, 100), (50, 100), (100, 100), (77, None), (300, 1000), (999, 1000)],
)
def test_large_limits_are_never_overstepped(low, high):
    """With many escapes a string gets longer, or ends earlier, than the schema allows."""
    text, dice = string_text(low, high), random.Random(low)
    longest = low + 20 if high is None else high
    for _ in range(15):
        length = dice.choice([max(low - 1, 0), longest + 1, dice.randint(0, longest + 20)])
        if accepts(text, random_string(dice, length)):
            assert low <= length and (high is None or length <= high)
    for length in (max(low - 1, 0), low, longest, longest + 1):
        fits = low <= length and (high is None or length <= high)
        assert accepts(text, '"' + "é" * length + '"') == fits, length


@pytest.mark.parametrize(("low", "high"), [(0, 100), (50, 100), (100, 100), (300, 400), (90, None)])
def test_no_way_through_a_large_string_is_a_dead_end(low, high):
    """After some escapes no token is allowed any more, and the answer stops in the middle."""
    text = string_text(low, high)
    for seed in range(5):
        dice, matcher = random.Random(seed), new_matcher(text)
        num_bytes = 0
        while (may := allowed(matcher)) != {STOP}:
            assert may
            likely = sorted(may & {ord("\\"), ord("n")}) if dice.random() < 0.3 else []
            chosen = dice.choice(likely or sorted(may - {STOP, ord('"')}) or [ord('"')])
            chosen = ord('"') if num_bytes > 1500 and ord('"') in may else chosen
            assert matcher.accept_token(chosen)
            num_bytes += 1


def test_an_escape_is_possible_early_and_late():
    """The text ends at the first quotation mark in it (D05)."""
    for low, high in ((0, 50), (0, 5000), (40, 50), (1, None), (100, None)):
        text = string_text(low, high)
        assert (
            accepts(text, '"' + r"\"" + "a" * 40 + r"\u00e9\n" + "a" * 2 + r"\"" + '"') or low > 46
        )
        assert accepts(text, '"' + "b" * 20 + r"\"" + "a" * 100 + '"') == (high != 50)


def test_rules_stay_small_and_impossible_limits_are_refused():
    """One large maxLength among thirty tools fails all of them (D19)."""
    for low, high in (
        (0, 65_536),
        (1, 10**9),
        (40_000, 65_536),
        (0, 64),
        (33, 64),
        (31, 32),
        (MAX_LENGTH, None),
    ):
        rules: dict[str, Expr] = string_rules("s", low, high)
        assert len(rules) < 1000
        assert sum(len(rule.parts) for rule in rules.values() if isinstance(rule, Alt)) < 5000
    for low, high in ((3, 2), (MAX_LENGTH + 1, None)):
        with pytest.raises(RequestError, match="cannot be written"):
            string_rules("s", low, high)
