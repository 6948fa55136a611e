"""The written text means what the grammar means: to us, and to xgrammar."""

import random
import re
from functools import cache

import numpy as np
import pytest

from deepinfer.errors import RequestError
from deepinfer.structured import charset
from deepinfer.structured.automaton import Dfa
from deepinfer.structured.grammar import (
    EMPTY,
    Alt,
    Chars,
    Expr,
    Grammar,
    Ref,
    Repeat,
    Seq,
    Text,
)
from deepinfer.structured.grammar_check import check
from deepinfer.structured.grammar_lower import lower
from deepinfer.structured.grammar_write import dfa_rules, write
from deepinfer.structured.library import (
    TokenTable,
    compile_text,
    fill_mask,
    new_grammar_compiler,
    new_matcher,
)
from tests.unit.structured.languages import STOP, accepts, random_grammar, strings, words

CONTROLS = charset.char_range(0, 0x1F)
# Ends of ranges, of lengths in UTF-8, and what notations are fond of.
CODES = [
    *range(0x21),
    *map(ord, "\"'\\]^-[](){}|*+?.,:;#=<>/$&~`@%!_aZ09"),
    *(0x7F, 0x80, 0x85, 0xA0, 0xFF, 0x7FF, 0x800, 0x2028, 0x2029, 0xD7FF, 0xE000, 0xFEFF),
    *(0xFFFD, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF),
]


def only(expr: Expr) -> str:
    return write(Grammar({"root": expr}, "root"))


def sensible(seed: int) -> Grammar | None:
    grammar = random_grammar(seed)
    try:
        check(grammar)
    except RequestError:
        return None
    return grammar


def test_lowering_keeps_the_language():
    """Writing out repetitions, or leaving out dead parts, loses or adds words."""
    grammars = [g for seed in range(1500) if (g := sensible(seed))]
    assert len(grammars) > 300
    for grammar in grammars:
        assert words(lower(grammar), 5) == words(grammar, 5), grammar


def test_xgrammar_reads_the_same_language():
    """The text means something else to xgrammar than to us."""
    grammars = [g for seed in range(1500, 2000) if (g := sensible(seed))]
    for grammar in grammars[:60]:
        text = write(grammar)
        expected = words(grammar, 4)
        assert {word for word in strings("ab", 4) if accepts(text, word)} == expected, text


@pytest.mark.parametrize("code", CODES)
def test_every_character_is_spelled_so_that_exactly_it_is_read(code):
    """A quote, a bracket or a control character breaks the text or lets in another character."""
    char = chr(code)
    others = [chr(one) for one in CODES if one != code] + ["x", "u", "n", "U"]
    own, spelled = charset.of(char), [only(Text(char)), only(Chars(charset.of(char)))]
    spelled.append(only(Repeat(Chars(own), 1, 200)))
    for text in spelled:
        assert accepts(text, char)
        assert not any(accepts(text, other) for other in others), text
    text = only(Seq((Text(char), Text("0"), Text(char + "F"))))
    assert accepts(text, f"{char}0{char}F")
    without = only(Chars(charset.complement(own)))
    assert not accepts(without, char)
    assert all(accepts(without, other) for other in others if other != char)


@pytest.mark.parametrize("expr", [Chars(charset.ALL), Repeat(Chars(charset.ALL), 1, 300)])
def test_broken_utf8_is_never_read(expr):
    """Half a surrogate pair or an overlong form reaches the client as garbage."""
    text = only(expr)
    for data in (
        b"\xed\xa0\x80",
        b"\xed\xbf\xbf",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xf4\x90\x80\x80",
    ):
        assert not accepts(text, data)
    assert accepts(text, "\ud7ff") and accepts(text, "\U0010ffff")


@pytest.mark.parametrize("high", [None, 5, 128, 129, 300])
@pytest.mark.parametrize("low", [0, 1, 3])
def test_counts_of_characters_are_exact(low, high):
    """A length limit is off by one, or is lost where xgrammar counts in another way."""
    text = only(Seq((Repeat(Chars(charset.of("a\U0001f600")), low, high), Text("!"))))
    pattern = re.compile(f"[a\U0001f600]{{{low},{'' if high is None else high}}}!")
    for length in {0, 1, 2, 3, 4, 5, 6, 127, 128, 129, 130, 299, 300, 301}:
        word = "\U0001f600a" * (length // 2) + "a" * (length % 2) + "!"
        assert accepts(text, word) == bool(pattern.fullmatch(word)), length


@pytest.mark.parametrize("high", [100, 300])
def test_masks_of_counted_characters_hold_for_longer_tokens(high):
    """A token that ends with a forbidden character passes, as with xgrammar's positive classes."""
    pytest.importorskip("xgrammar")
    endings = ["", "a", "\n", "\n\n", '"', "é", "。\n", "\U0001f600", "\ud7ff\x01"]
    spelled = [start + end for start in ("b", ".", " .", "。", "}}") for end in endings]
    table = TokenTable([bytes([one]) for one in range(256)] + [b""], [STOP], 257 + len(spelled))
    table.vocab.extend(one.encode() for one in spelled)
    text = only(
        Seq((Repeat(Chars(charset.subtract(charset.ALL, CONTROLS)), 0, high), Text("\x01")))
    )
    matcher = new_matcher(compile_text(new_grammar_compiler(table), text))
    pattern = re.compile(f"[^\\x00-\\x1f]{{0,{high}}}\x01?")
    for length in range(high + 1):
        row = np.zeros(-(-table.vocab_size // 32), np.int32)
        fill_mask(matcher, row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[257 : table.vocab_size]
        for one, bit in zip(spelled, bits, strict=True):
            assert bit == bool(pattern.fullmatch("x" * length + one)), (length, one)
        assert matcher.accept_token(ord("x")) == (length < high)


def test_no_count_of_alternatives_is_written():
    """Counted alternatives compile at once and then hang at the first mask (E10)."""
    item = Alt((Text("ab"), Chars(charset.of("c"))))
    text = write(Grammar({"root": Repeat(item, 2, 300), "spare": item}, "root"))
    assert "{" not in text and "*" not in text and "+" not in text
    for count in (1, 2, 3, 300, 301):
        assert accepts(text, "ab" * count) == (2 <= count <= 300)


def test_what_is_repeated_is_read_in_one_way():
    """A star over an option doubles the matcher's work at each character."""
    option = Alt((EMPTY, Text("a")))
    for expr in (
        Repeat(option, 0, None),
        Repeat(Repeat(option, 0, None), 0, 1),
        Repeat(Seq((option, Repeat(Text("b"), 0, None))), 1, 1),
        Alt((EMPTY, Repeat(Text("a"), 0, 2), Text(""))),
    ):
        lowered = lower(Grammar({"root": expr}, "root"))
        for word in words(lowered, 4):
            assert num_readings(lowered, word) == 1, (expr, word)


def num_readings(grammar: Grammar, word: str) -> int:
    """How many ways lead through the grammar to the word."""

    @cache
    def count(expr: Expr, start: int, end: int) -> int:
        match expr:
            case Text(text):
                return int(word[start:end] == text)
            case Chars(chars):
                return int(end == start + 1 and charset.contains(chars, ord(word[start])))
            case Ref(name):
                return count(grammar.rules[name], start, end)
            case Alt(parts):
                return sum(count(part, start, end) for part in parts)
            case Seq(()):
                return int(start == end)
            case Seq((first, *rest)):
                later = Seq(tuple(rest))
                cuts = range(start, end + 1)
                return sum(count(first, start, cut) and count(later, cut, end) for cut in cuts)
            case Repeat(part, low, high):
                most = end - start if high is None else high
                same = isinstance(part, Text | Chars)
                assert same, "others have become rules"
                fits = all(count(part, place, place + 1) for place in range(start, end))
                return int(fits and low <= end - start <= most)

    return count(Ref(grammar.root), 0, len(word))


def test_nesting_does_not_double_the_text():
    """Options in options in options give a grammar of megabytes (D14)."""
    expr: Expr = Text("a")
    for _ in range(30):
        expr = Repeat(Seq((Repeat(expr, 0, 1), Repeat(Text("b"), 0, 1))), 0, 3)
    grammar = Grammar({"root": expr}, "root")
    check(grammar)
    assert len(write(grammar)) < 10_000


def test_names_are_made_fit_for_xgrammar():
    """A rule called like one of xgrammar's own words, or in another script, breaks the text."""
    names = ["root", "true", "TagDispatch", "Token", "schéma", "a b", "rule-1", "some-1", "more-2"]
    rules: dict[str, Expr] = {"start": Alt(tuple(map(Ref, names)))}
    for number, name in enumerate(names):
        rules[name] = Repeat(Alt((EMPTY, Text(str(number)))), 0, None)
    text = write(Grammar(rules, "start"))
    assert all(accepts(text, str(number) * 2) for number in range(len(names)))
    assert not accepts(text, "01")


def test_equal_grammars_give_equal_texts():
    """The same schema is compiled anew, because the order of unused rules differs."""
    rules: dict[str, Expr] = {
        "root": Seq((Ref("x"), Repeat(Ref("y"), 2, 3))),
        "x": Text("a"),
        "y": Text("bc"),
    }
    turned = dict(reversed(rules.items()))
    assert write(Grammar(rules, "root")) == write(Grammar(turned | {"z": EMPTY}, "root"))


def test_an_automaton_as_rules_accepts_the_same_words():
    """A pattern's automaton accepts other words once it is written as rules."""
    dice = random.Random(1)
    for _ in range(20):
        num_states = dice.randint(1, 4)
        edges = tuple(
            tuple(
                (charset.of(one), dice.randrange(num_states)) for one in "ab" if dice.random() < 0.8
            )
            for _ in range(num_states)
        )
        accepting = frozenset(s for s in range(num_states) if dice.random() < 0.5) | {0}
        dfa = Dfa(edges, accepting)
        rules = dfa_rules(
            "s", dfa, lambda chars: Alt((Chars(chars), Seq((Text("\\"), Chars(chars))))), Text('"')
        )
        found = words(Grammar(rules, "s0"), 5)
        for word in strings("ab", 4):
            state: int | None = 0
            for char in word:
                targets = {} if state is None else dict(edges[state])
                state = targets.get(charset.of(char))
            assert (word + '"' in found) == (state in accepting)
        assert all(word.replace("\\", "") in found for word in found)
