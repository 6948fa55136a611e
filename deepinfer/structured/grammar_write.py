"""A grammar as EBNF text, in the dialect that xgrammar reads; an automaton as rules.

Knows how names, texts and character classes are spelled. Does not know tokens, nor whether the
grammar makes sense: it must have passed grammar_check.check.

The text has no counted repetition of anything but one character, because to count alternatives
makes the first mask take minutes: see grammar_lower.py.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache

from deepinfer.structured import charset
from deepinfer.structured.automaton import Dfa
from deepinfer.structured.charset import CharSet
from deepinfer.structured.grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_facts import distinct
from deepinfer.structured.grammar_lower import lower

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
# Names that mean something else to xgrammar, and the one that we give to the root.
_TAKEN = frozenset(
    ("root", "true", "false", "Token", "ExcludeToken", "TagDispatch", "TokenTagDispatch", "Regex")
)
# Spelled as they are, in texts and classes alike. xgrammar reads \x with as many digits as follow,
# so that everything else takes the form with four digits, or the one with eight.
_PLAIN = frozenset(
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _,:;.(){}<>/+*="
)


def write(grammar: Grammar) -> str:
    """The same language as text; the root is called `root` and comes first.

    One line is one rule. Equal rules, reached in the same order, give equal texts: what the root
    does not lead to is not written.
    """
    lowered = _with_root_of_its_own(lower(grammar))
    names = _written_names(lowered)
    lines = [f"{names[name]} ::= {_spell(rule, names)}\n" for name, rule in lowered.rules.items()]
    return "".join(lines)


def dfa_rules(prefix: str, dfa: Dfa, edge: Callable[[CharSet], Expr], end: Expr) -> dict[str, Expr]:
    """An automaton as rules, one for each state: prefix0, the start, then prefix1, and so on.

    edge: how one character of a set is spelled. end: what follows the last character.
    """
    rules: dict[str, Expr] = {}
    for state, edges in enumerate(dfa.edges):
        ways: list[Expr] = [end] if state in dfa.accepting else []
        for chars, target in edges:
            spelled = edge(chars)
            for one in spelled.parts if isinstance(spelled, Alt) else (spelled,):
                ways.append(Seq((one, Ref(f"{prefix}{target}"))))
        rules[f"{prefix}{state}"] = ways[0] if len(ways) == 1 else Alt(tuple(ways))
    return rules


def _with_root_of_its_own(grammar: Grammar) -> Grammar:
    """The same language; no rule calls the root.

    In a root that is called, xgrammar's masks lack the tokens that cross its end, such as "]]" for
    lists in lists.
    """
    parts = (part for rule in grammar.rules.values() for part in distinct(rule))
    if not any(isinstance(part, Ref) and part.name == grammar.root for part in parts):
        return grammar
    outer = f"{grammar.root}-outer"
    while outer in grammar.rules:
        outer += "x"
    return Grammar({outer: Ref(grammar.root), **grammar.rules}, outer)


def _written_names(grammar: Grammar) -> dict[str, str]:
    names = {grammar.root: "root"}
    used = set(grammar.rules) | _TAKEN
    for number, name in enumerate(grammar.rules):
        written = name
        if name in _TAKEN or not _NAME.fullmatch(name):
            written = f"rule-{number}"
            while written in used:
                written += "x"
            used.add(written)
        names.setdefault(name, written)
    return names


def _spell(expr: Expr, names: dict[str, str]) -> str:
    """`expr` as the whole of a rule. Its depth is bounded by the check."""
    if not isinstance(expr, Seq | Alt):
        return _spell_one(expr, names)
    if not expr.parts:
        return '""'
    parts = [_spell(part, names) for part in expr.parts]
    if isinstance(expr, Alt):
        return " | ".join(parts)
    grouped = [isinstance(part, Alt) for part in expr.parts]
    return " ".join(
        [f"({one})" if group else one for one, group in zip(parts, grouped, strict=True)]
    )


def _spell_one(expr: Text | Chars | Ref | Repeat, names: dict[str, str]) -> str:
    if isinstance(expr, Text):
        return '"' + "".join([_spell_code(ord(one)) for one in expr.text]) + '"'
    if isinstance(expr, Chars):
        return _spell_class(expr.chars)
    if isinstance(expr, Ref):
        return names[expr.name]
    assert isinstance(expr.part, Text | Chars), "others have become rules"
    return _spell_counted(expr.part) + _spell_count(expr.low, expr.high)


def _spell_counted(expr: Text | Chars) -> str:
    """A character class in its negative form, the surrogates among what it excludes.

    xgrammar 0.2.9 makes wrong masks for counts above 128 of most positive classes with characters
    beyond ASCII: it allows tokens that end with a character outside of the class. Negative classes
    come out right, and their masks are made once for all counts.
    """
    return _spell_negative(charset.of(expr.text) if isinstance(expr, Text) else expr.chars)


@lru_cache(maxsize=256)
def _spell_negative(chars: CharSet) -> str:
    others = [*charset.complement(chars), (0xD800, 0xDFFF)]
    return f"[^{_spell_ranges(sorted(others))}]"


@lru_cache(maxsize=256)
def _spell_class(chars: CharSet) -> str:
    return f"[{_spell_ranges(chars)}]"


def _spell_ranges(ranges: Iterable[tuple[int, int]]) -> str:
    spelled = [
        _spell_code(low) if low == high else f"{_spell_code(low)}-{_spell_code(high)}"
        for low, high in ranges
    ]
    return "".join(spelled)


def _spell_code(code: int) -> str:
    if code in _PLAIN:
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _spell_count(low: int, high: int | None) -> str:
    if (low, high) in ((0, None), (1, None)):
        return "+" if low else "*"
    if high is None:
        return f"{{{low},}}"
    return f"{{{low}}}" if low == high else f"{{{low},{high}}}"
