"""Random texts of a grammar, by derivation: no tokens, no compiler."""

import random

from deepinfer.structured.grammar import Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text

_MUCH = 10**9


class Derivation:
    """Draws texts of a grammar; after `most` characters the shortest way is taken."""

    def __init__(self, grammar: Grammar, most: int = 120) -> None:
        self._rules, self._root, self._most = grammar.rules, grammar.root, most
        self._shortest: dict[str, int] = {}
        grew = True
        while grew:
            grew = False
            for name, rule in grammar.rules.items():
                length = self._least(rule)
                if length < self._shortest.get(name, _MUCH):
                    self._shortest[name], grew = length, True

    def draw(self, rng: random.Random) -> str:
        """One text."""
        pieces: list[str] = []
        todo: list[Expr] = [Ref(self._root)]
        size = 0
        while todo:
            expr = todo.pop()
            if isinstance(expr, Text | Chars):
                pieces.append(expr.text if isinstance(expr, Text) else _one(expr, rng))
                size += len(pieces[-1])
            elif isinstance(expr, Ref):
                todo.append(self._rules[expr.name])
            elif isinstance(expr, Seq):
                todo += reversed(expr.parts)
            elif isinstance(expr, Alt):
                todo.append(self._chosen(expr, rng, hurry=size > self._most))
            else:
                high = expr.low + 3 if expr.high is None else expr.high
                count = expr.low if size > self._most else rng.randint(expr.low, high)
                todo += [expr.part] * count
        return "".join(pieces)

    def _chosen(self, expr: Alt, rng: random.Random, *, hurry: bool) -> Expr:
        least = [self._least(part) for part in expr.parts]
        good = [p for p, n in zip(expr.parts, least, strict=True) if n < _MUCH]
        if hurry:
            best = min(least)
            good = [p for p, n in zip(expr.parts, least, strict=True) if n == best]
        return rng.choice(good)

    def _least(self, expr: Expr) -> int:
        if isinstance(expr, Text):
            return len(expr.text)
        if isinstance(expr, Chars):
            return 1 if expr.chars else _MUCH
        if isinstance(expr, Ref):
            # A step more for each rule, so that a rule is never its own shortest way.
            return self._shortest.get(expr.name, _MUCH) + 1
        if isinstance(expr, Repeat):
            return expr.low * self._least(expr.part) if expr.low else 0
        least = [self._least(part) for part in expr.parts]
        return sum(least) if isinstance(expr, Seq) else min(least, default=_MUCH)


def _one(expr: Chars, rng: random.Random) -> str:
    low, high = rng.choice(expr.chars)
    # Mostly characters that people write.
    return chr(rng.randint(low, min(high, low + 200) if rng.random() < 0.9 else high))
