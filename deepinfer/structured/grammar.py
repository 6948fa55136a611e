"""A context-free grammar over characters: the one form that schemas, regexes and EBNF become.

Knows names and expressions. Does not know their spelling, JSON, tokens, or whether a grammar makes
sense (that is grammar_check.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from deepinfer.structured.charset import CharSet


@dataclass(frozen=True)
class Text:
    """Exactly this text. The empty text is a word too."""

    text: str


@dataclass(frozen=True)
class Chars:
    """One character of the set. The empty set has no word at all."""

    chars: CharSet


@dataclass(frozen=True)
class Ref:
    """What the rule of this name says."""

    name: str


@dataclass(frozen=True)
class Seq:
    """All parts, one after another."""

    parts: tuple["Expr", ...]


@dataclass(frozen=True)
class Alt:
    """One of the parts. Without parts there is no word at all."""

    parts: tuple["Expr", ...]


@dataclass(frozen=True)
class Repeat:
    """`part` at least `low` and at most `high` times in a row; `high` None: without an end."""

    part: "Expr"
    low: int
    high: int | None


Expr: TypeAlias = Text | Chars | Ref | Seq | Alt | Repeat

EMPTY = Seq(())


@dataclass(frozen=True)
class Grammar:
    """The words of the rule `root`."""

    rules: dict[str, Expr]
    root: str


def parts_of(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that `expr` is directly made of."""
    if isinstance(expr, Seq | Alt):
        return expr.parts
    if isinstance(expr, Repeat):
        return (expr.part,)
    return ()


def nodes(expr: Expr) -> Iterator[Expr]:
    """`expr` and all that it is made of, in the order in which it is written.

    Takes no Python stack, however deep the expression is.
    """
    todo = [expr]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(reversed(parts_of(node)))
