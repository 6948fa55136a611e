"""What grammars mean, worked out by plain enumeration, and what xgrammar makes of them."""

import random
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from deepinfer.structured.charset import CharSet, of
from deepinfer.structured.grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.library import TokenTable, compile_text, fill_mask, new_grammar_compiler
from deepinfer.structured.library import new_matcher as matcher_of

STOP = 256
BYTES = TokenTable([bytes([one]) for one in range(256)] + [b""], [STOP], 257)


@cache
def byte_compiler() -> Any:
    """xgrammar's compiler for a vocabulary of single bytes."""
    pytest.importorskip("xgrammar")
    return new_grammar_compiler(BYTES)


def new_matcher(text: str) -> Any:
    """A matcher of the grammar that the EBNF text describes."""
    return matcher_of(compile_text(byte_compiler(), text))


def accepts(text: str, word: str | bytes) -> bool:
    """Whether xgrammar accepts the word, byte by byte and to its end."""
    matcher = new_matcher(text)
    data = word.encode() if isinstance(word, str) else word
    return all(matcher.accept_token(one) for one in data) and matcher.accept_token(STOP)


def allowed(matcher: Any) -> set[int]:
    """The bytes, and STOP, that the mask allows."""
    row = np.zeros(9, np.int32)
    fill_mask(matcher, row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: BYTES.vocab_size]
    return set(np.flatnonzero(bits).tolist())


def strings(alphabet: str, longest: int) -> list[str]:
    """All strings over the alphabet up to a length."""
    lengths = range(longest + 1)
    return ["".join(word) for length in lengths for word in product(alphabet, repeat=length)]


def words(grammar: Grammar, longest: int) -> set[str]:
    """All words up to a length: every rule's are collected until nothing new comes."""
    found: dict[str, set[str]] = {name: set() for name in grammar.rules}
    while True:
        new = {name: _words(rule, found, longest) for name, rule in grammar.rules.items()}
        if new == found:
            return found[grammar.root]
        found = new


def _words(expr: Expr, found: dict[str, set[str]], longest: int) -> set[str]:
    match expr:
        case Text(text):
            return {text} if len(text) <= longest else set()
        case Chars(chars):
            return set(_letters(chars)) if longest else set()
        case Ref(name):
            return found[name]
        case Alt(parts):
            return set().union(*(_words(part, found, longest) for part in parts))
        case Seq(parts):
            all_words = {""}
            for part in parts:
                all_words = _joined(all_words, _words(part, found, longest), longest)
            return all_words
        case Repeat(part, low, high):
            one = _words(part, found, longest)
            result: set[str] = {""} if low == 0 else set()
            power = {""}
            for count in range(1, (low + longest if high is None else high) + 1):
                power = _joined(power, one, longest)
                result |= power if count >= low else set()
            return result


def _joined(first: set[str], second: set[str], longest: int) -> set[str]:
    return {a + b for a in first for b in second if len(a) + len(b) <= longest}


def _letters(chars: CharSet) -> list[str]:
    return [chr(code) for low, high in chars for code in range(low, high + 1)]


def random_grammar(seed: int) -> Grammar:
    """Up to three rules over the letters a and b, often without sense."""
    dice = random.Random(seed)
    names = ["start", "x", "y"][: dice.randint(1, 3)]
    return Grammar({name: _random(dice, names, 3) for name in names}, "start")


def _random(dice: random.Random, names: list[str], depth: int) -> Expr:
    kind = dice.randrange(8) if depth else dice.randrange(3)
    if kind == 0:
        return Text(dice.choice(["", "a", "b", "ab"]))
    if kind == 1:
        return Chars(dice.choice([of("a"), of("ab"), of("ab"), ()]))
    if kind == 2:
        return Ref(dice.choice(names))
    if kind in (3, 4):
        low = dice.randrange(3)
        high = dice.choice([None, low, low + 1, low + 2])
        return Repeat(_random(dice, names, depth - 1), low, high)
    parts = tuple(_random(dice, names, depth - 1) for _ in range(dice.randint(0, 3)))
    return Seq(parts) if kind in (5, 6) else Alt(parts)
