"""Mistakes that other engines made with strings and numbers in schemas, by their number."""

import json
from itertools import product
from typing import Any

import pytest

from tests.unit.structured.judge import VOCAB, Judge, is_valid, mask, refused, written
from tests.unit.structured.schema_cases import obj

_NEEDED = ['\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u0000", "\\u000B", "\\u005c"]
_ESCAPES = [*_NEEDED, "\\u0041", "\\u00e9", "\\uD83D\\uDE00", "\\ud83d\\ude00"]
_BOUNDED = [
    {"type": "string", "maxLength": 50},
    {"type": "string", "minLength": 1, "maxLength": 50},
    {"type": "string", "minLength": 3},
    {"type": "string", "pattern": "^[\\s\\S]*$", "maxLength": 50},
    {"type": "string", "minLength": 2, "maxLength": 900},
]


@pytest.mark.parametrize("schema", _BOUNDED, ids=str)
def test_d05_escapes_in_a_string_with_limits(judge: Judge, schema: Any) -> None:
    """D05: with maxLength no quote or line break can be written, but raw control characters can."""
    text = written(schema)
    # Beside a pattern, only what needs an escape has one.
    escapes = _NEEDED if "pattern" in schema else _ESCAPES
    allowed = [f'"ab{escape}cd"' for escape in escapes]
    allowed += ['"she said \\"yes\\", twice"', '"\\n\\n\\""']
    assert all(is_valid(schema, one) for one in allowed)
    assert judge.accepted(text, allowed) == allowed
    raw = [f'"ab{chr(code)}cd"' for code in range(0x20)] + [
        '"a"b"',
        '"ab\\"',
        '"ab\\x41"',
        '"\\u12"',
    ]
    raw += ['"ab\\ud83dcd"', '"ab\\ude00cd"', '"ab\\ud83d\\u0041cd"']
    assert judge.accepted(text, raw) == []
    matcher = judge.matcher(text)
    assert matcher.accept_string('"abcd')
    after_text = {VOCAB[one] for one in mask(matcher)}
    assert {b"\\", b'\\"', b"\\\\", b"\\n", b"\\u00", b'x\\"', b'"', b"a"} <= after_text
    assert not after_text & {bytes([code]) for code in range(0x20)}
    assert not after_text & {b"\n  ", b'",', b'","', b'"}'}
    assert matcher.accept_token(VOCAB.index(b"\\"))
    after_backslash = {VOCAB[one] for one in mask(matcher)} & {bytes([one]) for one in range(256)}
    assert after_backslash == {bytes([one]) for one in b'"\\/bfnrtu'}


def test_d05_escapes_are_counted_as_one_character(judge: Judge) -> None:
    """D05: an escape counts as six characters, or as none."""
    for high in (1, 5, 50):
        text = written({"type": "string", "minLength": 1, "maxLength": high})
        for escape in _ESCAPES:
            fitting = f'"{"é" * (high - 1)}{escape}"'
            assert judge.accepted(text, [fitting, f'"{escape}{"é" * high}"', '""']) == [fitting]


@pytest.mark.parametrize(
    ("pattern", "low", "high"),
    [
        ("^[a-c]+$", 0, 3),
        ("b", 0, 3),
        ("^a", 2, 4),
        ("c$", 1, 2),
        ("^(ab)*$", 1, 3),
        ("a|^b", 0, 2),
    ],
)
def test_d07_pattern_and_length_both_hold(judge: Judge, pattern: str, low: int, high: int) -> None:
    """D07: strings longer than maxLength pass when there is a pattern, or `b` means only "b"."""
    schema = {"type": "string", "pattern": pattern, "minLength": low, "maxLength": high}
    strings = ["".join(w) for length in range(6) for w in product("abcx", repeat=length)]
    texts = [json.dumps(one) for one in strings]
    assert judge.accepted(written(schema), texts) == [one for one in texts if is_valid(schema, one)]


def test_d07_pattern_that_never_fits_the_length() -> None:
    """D07: a pattern of five letters with maxLength 3 is accepted as if one of them were absent."""
    error = refused(obj(a={"type": "string", "pattern": "^[a-z]{5}$", "maxLength": 3}))
    assert error.field == "so_args.schema#/properties/a"
    assert "no value" in error.what


_FORMS = "{0} 0{0} -0{0} 00 +{0} -0 {0}.0 {0}.5 {0}e0 {0}e1 {0}E+1 {0}. .{0} -{0} --{0} 0x{0} {0}_0"
_NUMBERS = [str(one) for one in range(-120, 121)]
_MALFORMED = sorted({f.format(n) for f in _FORMS.split() for n in (0, 1, 7, 12)} - {*_NUMBERS})
_MALFORMED += ["", "-", " 1", "1 ", "\n1", "1\n", "١", '"1"', "null", "1,", "-1-1"]
_CORNERS = [-25, -21, -20, -19, -11, -10, -9, -2, -1, 0, 1, 9, 10, 12, 20, 25]


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(_CORNERS, id="corners"),
        pytest.param(range(-25, 26), id="all", marks=pytest.mark.slow),
    ],
)
def test_d08_every_pair_of_bounds(judge: Judge, bounds: list[int]) -> None:
    """D08: numbers outside the bounds pass, or such that are not JSON, with leading zeros say.

    The rule: canonical integers only, so neither 1.0 nor 1e1, which JSON Schema calls integers.
    """
    lows = [{}, *({k: n} for n in bounds for k in ("minimum", "exclusiveMinimum"))]
    highs = [{}, *({k: n} for n in bounds for k in ("maximum", "exclusiveMaximum"))]
    known: dict[str, list[str]] = {}
    for low, high in product(lows, highs):
        first = low.get("minimum", low.get("exclusiveMinimum", -1000) + 1)
        last = high.get("maximum", high.get("exclusiveMaximum", 1000) - 1)
        schema = {"type": "integer", **low, **high}
        if first > last:
            assert "no value" in refused(schema).what
            continue
        text = written(schema)
        if text not in known:
            known[text] = judge.accepted(text, _NUMBERS + _MALFORMED)
        assert known[text] == [one for one in _NUMBERS if first <= int(one) <= last], schema
    assert len(known) > len(bounds)
