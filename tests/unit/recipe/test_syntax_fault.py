"""Where a text stops being JSON."""

import json

import pytest

from deepinfer.recipe.json_text import MAX_DEPTH
from deepinfer.recipe.syntax_fault import syntax_fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("\n\n", "EOF while parsing a value at line 3 column 0"),
        ('{"a', "EOF while parsing a string at line 1 column 3"),
        ('{"a"', "EOF while parsing an object at line 1 column 4"),
        ("[1", "EOF while parsing a list at line 1 column 2"),
        ('{"a":1,}', "trailing comma at line 1 column 8"),
        ("[1,]", "trailing comma at line 1 column 4"),
        ("{a:1}", "key must be a string at line 1 column 2"),
        ('{"a" 1}', "expected `:` at line 1 column 6"),
        ('{"a":[1,2}', "expected `,` or `]` at line 1 column 10"),
        ('{"a":1 "b"}', "expected `,` or `}` at line 1 column 8"),
        ('\n {"a":\n x}', "expected value at line 3 column 2"),
        ("nulx", "expected ident at line 1 column 4"),
        ("01", "invalid number at line 1 column 2"),
        ("-a", "invalid number at line 1 column 2"),
        ("[1e400]", "number out of range at line 1 column 6"),
        ('"\\x"', "invalid escape at line 1 column 3"),
        ('"\\ud800"', "unexpected end of hex escape at line 1 column 8"),
        ('"\\udc00"', "lone leading surrogate in hex escape at line 1 column 7"),
        ("{} x", "trailing characters at line 1 column 4"),
        # Columns are bytes.
        ('{"é": x}', "expected value at line 1 column 8"),
        ("[" * 200, f"recursion limit exceeded at line 1 column {MAX_DEPTH + 1}"),
    ],
)
def test_fault(text, fault):
    """A client looks for its mistake in the wrong place."""
    assert syntax_fault(text.encode()) == fault


def test_bytes_that_are_no_text():
    """Bytes that are no text end in an error of this module's own."""
    assert syntax_fault(b'{"a":"\xff"}') == "invalid unicode code point at line 1 column 8"
    assert syntax_fault(b"\xff") == "expected value at line 1 column 1"


def test_no_fault():
    """JSON is called wrong."""
    value = {"a": [1, -0.5e3, True, None, "\\ \u20ac \U0001f600 \n"], "": {}, "b": [[], {}]}
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1), " 12 "):
        assert syntax_fault(text.encode()) == "no fault"
