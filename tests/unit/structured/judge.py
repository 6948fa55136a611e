"""Who judges a grammar: xgrammar's matcher over a small vocabulary, and a reader of our own.

The reader walks the grammar itself, character by character, with all ways at once. It knows nothing
of the text that is written for xgrammar, so that the two can be compared.
"""

import json
import random
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from deepinfer.errors import RequestError
from deepinfer.so_args import SchemaType, SoArgs
from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet
from deepinfer.structured.control_chars import plain, token_text
from deepinfer.structured.grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.library import (
    TokenTable,
    compile_text,
    fill_mask,
    new_grammar_compiler,
    new_matcher,
)
from deepinfer.structured.output_grammar import output_grammar
from deepinfer.structured.prune import pruned
from deepinfer.structured.schema import schema_grammar
from tests.unit.structured.derive import Derivation

CONTROL = ["｜DSML｜", "</think>", "<｜User｜>", "<｜end▁of▁sentence｜>"]
# Tokens that cross the borders of a grammar, or look like control tokens, or cut a character.
PIECES = [
    *(
        '"',
        '","',
        '",',
        '":',
        '": "',
        '"}',
        '"]',
        '["',
        '{"',
        '[{"',
        '"},{"',
        "}]",
        "]}",
        "}}",
        "]]",
    ),
    *(
        "[]",
        "{}",
        "[[",
        '["a',
        'a"',
        'a":',
        'b":',
        '"b":1',
        "a,",
        ",a",
        ", ",
        ":",
        ": ",
        ":1",
        "1}",
    ),
    *("1,", "12", "-1", "0.5", "e5", "true", "null", "tru", "ue,", "\n", "\n  ", "  ", " ", "\n\n"),
    *('\\"', "\\\\", "\\n", "\\u00", "\\u0041", "\\", 'x\\"', '\\",', '\\","', "ab", "abc", "abcd"),
    *(
        "</think>",
        "｜DSML｜",
        "｜",
        "DSML",
        "</",
        "<",
        ">",
        "think>",
        "<｜",
        "｜>",
        "é",
        "日本",
        "😀",
    ),
    *("</｜DSML｜ parameter>", "parameter", ' string="', 'true">', 'false">', " invoke", ">\n"),
]
BYTES = [bytes([one]) for one in range(256)]
# As the tokenizer has them, and as the compiler is to see them.
_ORDINARY = [*BYTES, *(one.encode() for one in PIECES), b"\xe6\x97", b"\x97\xa5", b"\xf0\x9f\x98"]
VOCAB = [token_text(None, one) for one in _ORDINARY] + [token_text(one, b"") for one in CONTROL]
FIRST_CONTROL = len(_ORDINARY)
STOP = len(VOCAB) - 1


def control_id(spelling: str) -> int:
    """The control token's id."""
    return FIRST_CONTROL + CONTROL.index(spelling)


def written(schema: Any, kind: SchemaType = "json", whitespace: Any = "bounded") -> str:
    """The grammar's text, as for a request."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return output_grammar(SoArgs(kind, text, whitespace=whitespace))


def refused(schema: Any, kind: SchemaType = "json") -> RequestError:
    """The error for what must not be accepted."""
    with pytest.raises(RequestError) as caught:
        written(schema, kind)
    assert caught.value.hint
    return caught.value


def tool(name: str, parameters: Any) -> dict[str, Any]:
    """A tool, as clients describe it."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def is_valid(schema: Any, text: str, *, twins: bool = False) -> bool:
    """The text is JSON, and the schema allows the value. twins: a key may come twice."""
    pairs_hook = dict if twins else _without_twins
    try:
        value = json.loads(text, object_pairs_hook=pairs_hook, parse_constant=_no_constant)
    except ValueError:
        return False
    checker = Draft202012Validator.FORMAT_CHECKER
    return Draft202012Validator(schema, format_checker=checker).is_valid(value)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key comes twice")
    return dict(pairs)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Judge:
    """xgrammar for the vocabulary VOCAB; STOP ends the text."""

    def __init__(self) -> None:
        self._compiler = new_grammar_compiler(TokenTable(VOCAB, [STOP], len(VOCAB)))
        self._compiled: dict[str, Any] = {}

    def matcher(self, text: str) -> Any:
        """A matcher at the beginning of the grammar of this text."""
        if text not in self._compiled:
            self._compiled[text] = compile_text(self._compiler, text)
        return new_matcher(self._compiled[text])

    def accepts(self, text: str, word: str | bytes) -> bool:
        """The word, to its end."""
        matcher = self.matcher(text)
        return bool(matcher.accept_string(word)) and bool(matcher.is_completed())

    def accepted(self, text: str, words: Iterator[str] | list[str]) -> list[str]:
        """Those of the words."""
        matcher = self.matcher(text)
        found = []
        for word in words:
            if matcher.accept_string(word) and matcher.is_completed():
                found.append(word)
            matcher.reset()
        return found

    def begins(self, text: str, word: str | bytes) -> bool:
        """Some word of the grammar begins so."""
        return bool(self.matcher(text).accept_string(word))


def drawn(schema: Any, count: int) -> list[str]:
    """Texts of the schema's grammar, by derivation."""
    derivation, rng = Derivation(plain(schema_grammar(schema))), random.Random(1)
    return [derivation.draw(rng) for _ in range(count)]


def assert_sound(judge: Judge, schema: Any, count: int) -> None:
    """What the grammar can write, xgrammar takes and a validator allows.

    A key that no schema names may come twice: what was written is not compared.
    """
    texts = drawn(schema, count)
    assert judge.accepted(written(schema), texts) == texts
    assert [one for one in texts if not is_valid(schema, one, twins=True)] == []


def mask(matcher: Any) -> set[int]:
    """The ids of the tokens that may come."""
    row = np.zeros(-(-len(VOCAB) // 32), np.int32)
    fill_mask(matcher, row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: len(VOCAB)]
    return set(np.flatnonzero(bits).tolist())


# What is still to be read: the next expression, and what follows it. None: nothing.
Stack: TypeAlias = "tuple[Expr, Stack] | None"


class Reader:
    """All ways through a grammar at once; see the module's docstring."""

    def __init__(self, grammar: Grammar) -> None:
        useful = pruned(grammar)
        assert useful is not None
        self._rules = useful.rules
        self.start = self._opened([(Ref(useful.root), None)])

    def tokens(self, ways: frozenset[Stack], half: bytes = b"") -> set[int]:
        """The ids of all tokens that may come. half: the bytes of a character that has begun."""
        found = {
            one for one, text in enumerate(VOCAB) if text and self._can_read(ways, half + text)
        }
        return found | ({STOP} if None in ways and not half else set())

    def read(self, ways: frozenset[Stack], data: bytes) -> tuple[frozenset[Stack], bytes]:
        """(the ways that are left after whole characters, the bytes of one that has begun)."""
        while data and (length := _length(data[0])) <= len(data):
            try:
                code = ord(data[:length].decode())
            except ValueError:
                return frozenset(), b""
            ways = self._after(ways, code)
            data = data[length:]
        return ways, data

    def _can_read(self, ways: frozenset[Stack], data: bytes) -> bool:
        ways, half = self.read(ways, data)
        if not half:
            return bool(ways)
        wanted = _codes(half)
        return any(charset.intersect(_first(way), wanted) for way in ways if way is not None)

    def _after(self, ways: frozenset[Stack], code: int) -> frozenset[Stack]:
        left = []
        for way in ways:
            if way is not None and charset.contains(_first(way), code):
                expr, rest = way
                more = isinstance(expr, Text) and expr.text[1:]
                left.append((Text(more), rest) if more else rest)
        return self._opened(left)

    def _opened(self, ways: list[Stack]) -> frozenset[Stack]:
        """The same, each way beginning with a character that is to be read."""
        found: set[Stack] = set()
        todo, seen = ways, set(ways)
        while todo:
            way = todo.pop()
            if (
                way is None
                or isinstance(way[0], Chars)
                or (isinstance(way[0], Text) and way[0].text)
            ):
                found.add(way)
                continue
            fresh = [one for one in self._opened_once(*way) if one not in seen]
            seen.update(fresh)
            todo.extend(fresh)
        return frozenset(found)

    def _opened_once(self, expr: Expr, rest: Stack) -> list[Stack]:
        if isinstance(expr, Ref):
            return [(self._rules[expr.name], rest)]
        if isinstance(expr, Alt):
            return [(part, rest) for part in expr.parts]
        if isinstance(expr, Seq):
            for part in reversed(expr.parts):
                rest = (part, rest)
            return [rest]
        if isinstance(expr, Repeat):
            high = None if expr.high is None else expr.high - 1
            again = (expr.part, (Repeat(expr.part, max(expr.low - 1, 0), high), rest))
            return ([rest] if expr.low == 0 else []) + ([] if expr.high == 0 else [again])
        return [rest]  # the empty text


def _first(way: tuple[Expr, Stack]) -> CharSet:
    expr = way[0]
    assert isinstance(expr, Chars | Text)
    return expr.chars if isinstance(expr, Chars) else charset.of(expr.text[0])


def _length(lead: int) -> int:
    """Bytes of a character of UTF-8; 1 for a byte that begins none."""
    return next((n for n, low, high in _LEADS if low <= lead <= high), 1)


_LEADS = [(2, 0xC2, 0xDF), (3, 0xE0, 0xEF), (4, 0xF0, 0xF4)]
_SMALLEST = {2: 0x80, 3: 0x800, 4: 0x10000}


def _codes(half: bytes) -> CharSet:
    """The characters whose UTF-8 begins with `half`."""
    length = _length(half[0])
    if any(not 0x80 <= one <= 0xBF for one in half[1:]):
        return ()
    code = half[0] & (0x7F >> length)
    for one in half[1:]:
        code = code << 6 | one & 0x3F
    shift = 6 * (length - len(half))
    low, high = max(code << shift, _SMALLEST[length]), min(((code + 1) << shift) - 1, 0x10FFFF)
    return charset.intersect(charset.char_range(low, high), charset.ALL) if low <= high else ()
