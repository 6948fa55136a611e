"""JSON text as the recipe reads and writes it (spec recipe 3).

Knows text and plain values (dict, list, str, int, float, bool, None). Does not know what the values
mean, or where they come from.

Python's json module alone would not do: it takes NaN, lone surrogates and any depth, it keeps
integers of any size, and it writes floats in one way only.
"""

import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NoReturn

from deepinfer.recipe.conversation import Version

MAX_DEPTH = 127
_INTEGERS = range(-(2**63), 2**64)
# No longer text is in that range; Python refuses to read integers of thousands of digits.
_INTEGER_LEN = 20
# Escapes are found from left to right, so that `\\ud800` is a backslash and five characters.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]|(?P<lone>\\u[dD][89a-fA-F])|\\.", re.DOTALL
)
# Possessive, and content with a string that does not end: whatever the text, one pass over it.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Of equal keys the last value counts, at the place of the first. Integers that neither 64-bit
    type holds become floats, and so does `-0`. Raises ValueError for what is not JSON, for a
    number beyond the floats, half a surrogate pair, and arrays or objects deeper than MAX_DEPTH.
    """
    if any(escape["lone"] for escape in _ESCAPE.finditer(text)):
        raise ValueError("half a surrogate pair in a string")
    if _depth(text) > MAX_DEPTH:
        raise ValueError(f"deeper than {MAX_DEPTH} levels")
    return json.loads(text, parse_int=_integer, parse_float=_float, parse_constant=_refuse)


def spaced(value: Any, version: Version) -> str:
    """JSON as prompts have it: a space after each comma and colon.

    The versions write small floats differently. Raises TypeError for what is no JSON value.
    """
    return _write(value, ", ", ": ", _float_text_v4 if version == "v4" else repr)


def compact(value: Any) -> str:
    """JSON without spaces, as constraints have it, with the floats of V4.

    Raises TypeError for what is no JSON value.
    """
    return _write(value, ",", ":", _float_text_v4)


def _integer(text: str) -> int | float:
    if text == "-0" or len(text) > _INTEGER_LEN:
        return _float(text)
    number = int(text)
    return number if number in _INTEGERS else float(number)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("number out of range")
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _depth(text: str) -> int:
    """How deep brackets nest; of text that is not JSON, some number."""
    # Few texts have so many brackets at all, and only those are worth the scan.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        deepest = max(deepest, depth)
    return deepest


def _write(value: Any, comma: str, colon: str, float_text: Callable[[float], str]) -> str:
    def text(part: Any) -> str:
        if isinstance(part, dict):
            return "{" + comma.join(f"{text(k)}{colon}{text(v)}" for k, v in part.items()) + "}"
        if isinstance(part, list | tuple):
            return "[" + comma.join(map(text, part)) + "]"
        if isinstance(part, float):
            return float_text(part)
        return json.dumps(part, ensure_ascii=False)

    return text(value)


def _float_text_v4(number: float) -> str:
    """As Python writes it, but 0.00001 in full and no zero before a one-digit exponent."""
    text = repr(number)
    mantissa, _, exponent = text.partition("e-0")
    if not exponent:
        return text
    return f"{Decimal(text):f}" if exponent == "5" else f"{mantissa}e-{exponent}"
