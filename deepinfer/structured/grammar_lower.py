"""A grammar without repetitions and without dead ends: what is left to do before it is spelled.

Knows grammars alone. The grammar must have passed grammar_check.check.

The only repetition left is of one character. Any other becomes rules: `x*` becomes
`r ::= "" | x r`, and `x{2,4}` becomes `x x r2` with `r2 ::= "" | x r1` and `r1 ::= "" | x`. If `x`
may be empty, its non-empty words are repeated instead, which is the same language and is read in
one way only. Parts that no word fits are left out.
"""

from dataclasses import dataclass

from deepinfer.structured.grammar import EMPTY, Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_facts import (
    nullable,
    one_character,
    productive,
    reachable,
    with_letters,
)


@dataclass(frozen=True)
class _Forms:
    """A language in two forms: all its words, and those that are not empty. None: no such word."""

    full: Expr | None
    filled: Expr | None
    may_be_empty: bool


_NOTHING = _Forms(None, None, False)
_ONLY_EMPTY = _Forms(EMPTY, None, True)


def lower(grammar: Grammar) -> Grammar:
    """The same language; rules that are not needed are gone, and new ones may be there.

    Every Seq and Alt in it has at least two parts, but for EMPTY itself, and every Text at least
    one letter.
    """
    work = _Lowering(grammar)
    for name, rule in work.given.items():
        forms = work.forms(rule)
        if forms.full is not None:
            work.rules[name] = forms.full
        if forms.filled is not None and forms.may_be_empty:
            work.rules[work.some[name]] = forms.filled
    lowered = Grammar(work.rules, grammar.root)
    return Grammar({name: lowered.rules[name] for name in reachable(lowered)}, grammar.root)


class _Lowering:
    """The rules written so far, and names for new ones."""

    def __init__(self, grammar: Grammar) -> None:
        self.given = {name: grammar.rules[name] for name in reachable(grammar)}
        self.rules: dict[str, Expr] = {}
        self._names = set(self.given)
        self._num_new = 0
        words = productive(self.given)
        letters, empties = with_letters(self.given, words), nullable(self.given)
        self._alive = {name for name, rule in self.given.items() if id(rule) in words}
        self._empty = {name for name, rule in self.given.items() if id(rule) in empties}
        # For each rule with the empty word and others: the name of a rule with only the others.
        self.some = {
            name: self._new_name("some")
            for name, rule in self.given.items()
            if name in self._empty and id(rule) in letters
        }

    def forms(self, expr: Expr) -> _Forms:
        """Both forms of `expr`. Rules that they call are among `rules` when all is lowered.

        An expression's two forms each hold each part's forms at most once, so that nothing grows
        with the depth.
        """
        if isinstance(expr, Text):
            return _Forms(expr, expr, False) if expr.text else _ONLY_EMPTY
        if isinstance(expr, Chars):
            return _Forms(expr, expr, False) if expr.chars else _NOTHING
        if isinstance(expr, Ref):
            return self._ref(expr)
        if isinstance(expr, Repeat):
            return self._repeat(expr)
        parts = [self.forms(part) for part in expr.parts]
        return self._seq(parts) if isinstance(expr, Seq) else self._alt(parts)

    def _ref(self, expr: Ref) -> _Forms:
        if expr.name not in self._alive:
            return _NOTHING
        if expr.name in self.some:
            return _Forms(expr, Ref(self.some[expr.name]), True)
        return _ONLY_EMPTY if expr.name in self._empty else _Forms(expr, expr, False)

    def _alt(self, parts: list[_Forms]) -> _Forms:
        filled = [part.filled for part in parts if part.filled is not None]
        num_empty = sum(part.may_be_empty for part in parts)
        if num_empty == 0:
            return _Forms(_one_of(filled), _one_of(filled), False) if filled else _NOTHING
        if num_empty > 1:  # the empty word comes in once, not by several ways
            return _optional(_one_of(filled)) if filled else _ONLY_EMPTY
        full = [part.full for part in parts if part.full is not None]
        return _Forms(_one_of(full), _one_of(filled) if filled else None, True)

    def _seq(self, parts: list[_Forms]) -> _Forms:
        if any(part.full is None for part in parts):
            return _NOTHING
        parts = [part for part in parts if part.filled is not None]
        full = _in_turn([part.full for part in parts if part.full is not None])
        if not all(part.may_be_empty for part in parts):
            return _Forms(full, full, False)
        # The first part that is not empty, and what may follow it.
        rest = _ONLY_EMPTY
        for part in reversed(parts):
            rest = self._begun(part, rest)
        return _Forms(full, rest.filled, True)

    def _begun(self, part: _Forms, rest: _Forms) -> _Forms:
        if part.filled is None or rest.filled is None:
            return rest if part.filled is None else part
        later = self._named(rest.filled)
        begun = _in_turn([part.filled, _one_of([EMPTY, later])])
        return _optional(_one_of([begun, later]))

    def _repeat(self, expr: Repeat) -> _Forms:
        low, high = expr.low, expr.high
        body = self.forms(expr.part)
        if high == 0 or body.filled is None:
            return _ONLY_EMPTY if body.may_be_empty or low == 0 else _NOTHING
        if body.may_be_empty:
            low = 0
        if (low, high) == (0, 1):
            return _optional(body.filled)
        if (low, high) == (1, 1):
            return body
        if one_character(expr.part):
            filled: Expr = Repeat(body.filled, max(low, 1), high)
            full: Expr = Repeat(body.filled, low, high)
            return _Forms(full, filled, low == 0)
        one = self._named(body.filled)
        if low == 0:
            rest = self._up_to(one, None if high is None else high - 1)
            return _optional(_in_turn([one, rest]))
        rest = self._up_to(one, None if high is None else high - low)
        full = _in_turn([one] * low + [rest])
        return _Forms(full, full, False)

    def _up_to(self, one: Expr, high: int | None) -> Expr:
        """`one` any number of times, up to `high`."""
        if high is None:
            loop = Ref(self._new_name("more"))
            self.rules[loop.name] = _one_of([EMPTY, _in_turn([one, loop])])
            return loop
        rest: Expr = EMPTY
        for _ in range(high):
            name = self._new_name("more")
            self.rules[name] = _one_of([EMPTY, _in_turn([one, rest])])
            rest = Ref(name)
        return rest

    def _named(self, expr: Expr) -> Expr:
        """`expr` in a form that may be written several times: short, or a rule of its own."""
        if isinstance(expr, Ref | Chars) or (isinstance(expr, Text) and len(expr.text) < 20):
            return expr
        name = self._new_name("part")
        self.rules[name] = expr
        return Ref(name)

    def _new_name(self, kind: str) -> str:
        while True:
            self._num_new += 1
            name = f"{kind}-{self._num_new}"
            if name not in self._names:
                return name


def _optional(filled: Expr) -> _Forms:
    """The words of `filled`, and the empty word."""
    return _Forms(_one_of([EMPTY, filled]), filled, True)


def _one_of(parts: list[Expr]) -> Expr:
    flat: list[Expr] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Alt) else (part,))
    return flat[0] if len(flat) == 1 else Alt(tuple(flat))


def _in_turn(parts: list[Expr]) -> Expr:
    flat: list[Expr] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, Seq) else (part,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))
