"""Values of JSON and the records made of them."""

import pytest

from deepinfer.recipe import fields
from deepinfer.recipe.fields import Unreadable, described, one_of, quoted, sequence, single
from deepinfer.recipe.records import maybe, need, prefixed, record, tagged, unless_absent

POINT = record(
    "struct Point",
    {
        "x": need(fields.u8),
        "label": maybe(fields.string),
        "kind": unless_absent(one_of("a b"), "a"),
    },
)
SHAPE = tagged("Shape", "type", {"dot": {"at": need(POINT)}, "none": {}})


def refused(read, value):
    with pytest.raises(Unreadable) as caught:
        read(value)
    return caught.value.text, caught.value.path


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "boolean `true`"),
        (-3, "integer `-3`"),
        (1e-7, "floating point `1e-7`"),
        (2.0, "floating point `2.0`"),
        ('a"\n', 'string "a\\"\\n"'),
        ([1], "sequence"),
        ({}, "map"),
    ],
)
def test_described(value, text):
    """An error calls a value something that it is not, such as true an integer."""
    assert described(value) == text


def test_quoted_hides_nothing():
    """Characters that do not print go into an error as they are, and the message misleads."""
    assert quoted("é\x00\x07\u0301\u200b😀'") == '"é\\0\\u{7}\\u{301}\\u{200b}😀\'"'


@pytest.mark.parametrize(
    ("read", "value", "text"),
    [
        (fields.u8, -1, "invalid value: integer `-1`, expected u8"),
        (fields.u8, 256, "invalid value: integer `256`, expected u8"),
        (fields.u8, 1.0, "invalid type: floating point `1.0`, expected u8"),
        (fields.u8, True, "invalid type: boolean `true`, expected u8"),
        (fields.f32, True, "invalid type: boolean `true`, expected f32"),
        (fields.boolean, 1, "invalid type: integer `1`, expected a boolean"),
        (one_of("a"), "x", "unknown variant `x`, expected `a`"),
        (one_of("a b"), "x", "unknown variant `x`, expected `a` or `b`"),
        (one_of("a b c"), "x", "unknown variant `x`, expected one of `a`, `b`, `c`"),
        (one_of("a"), {"a": 1}, "invalid type: integer `1`, expected unit"),
        (one_of("a"), {}, "invalid value: map, expected map with a single key"),
        (one_of("a"), [], "invalid type: sequence, expected string or map"),
    ],
)
def test_wrong_values(read, value, text):
    """A value of another type is taken for something else, or the error does not say for what."""
    assert refused(read, value)[0] == text


def test_single():
    """Sampling values are compared or shown with digits that the recipe does not keep."""
    assert single(1.00000001) == 1.0
    assert single(1e-50) == 0.0
    assert single(1e39) == float("inf")
    assert fields.shortest_single(single(0.7)) == 0.7
    assert fields.shortest_single(0.12345678912) == 0.12345679


def test_record_takes_its_fields():
    """A field is lost, an unknown one is refused, or a default is not there."""
    assert POINT({"x": 1, "more": 2}) == {"x": 1, "label": None, "kind": "a"}
    assert POINT({"label": None, "x": 1, "kind": "b"}) == {"x": 1, "label": None, "kind": "b"}
    assert POINT([1, None]) == {"x": 1, "label": None, "kind": "a"}


@pytest.mark.parametrize(
    ("read", "value", "text", "path"),
    [
        (POINT, 1, "invalid type: integer `1`, expected struct Point", []),
        (POINT, {}, "missing field `x`", ["x"]),
        (POINT, {"x": 1, "kind": None}, "invalid type: null, expected string or map", ["kind"]),
        # The body's order, not the description's; what is missing comes last.
        (POINT, {"label": 1}, "invalid type: integer `1`, expected a string", ["label"]),
        (POINT, [], "invalid length 0, expected struct Point with 3 elements", []),
        (POINT, [1, "", "a", 1], "invalid length 4, expected fewer elements in array", []),
        (SHAPE, {}, "missing field `type`", []),
        (SHAPE, "x", 'invalid type: string "x", expected internally tagged enum Shape', []),
        (SHAPE, {"type": "x"}, "unknown variant `x`, expected `dot` or `none`", ["type"]),
        (SHAPE, {"type": "dot"}, "missing field `at`", ["at"]),
        (SHAPE, ["none", 1], "invalid length 1, expected 0 elements in sequence", []),
        (
            SHAPE,
            ["dot"],
            "invalid length 0, expected struct variant Shape::Dot with 1 element",
            [],
        ),
        (
            sequence(SHAPE),
            [{"type": "none"}, {"at": {"x": -1}, "type": "dot"}],
            "invalid value: integer `-1`, expected u8",
            [1, "at", "x"],
        ),
        (
            prefixed("name", fields.string),
            1,
            "field `name`: invalid type: integer `1`, expected a string",
            ["name"],
        ),
    ],
)
def test_record_refuses(read, value, text, path):
    """A client is told of another fault, or of another place, than the first one."""
    assert refused(read, value) == (text, path)
