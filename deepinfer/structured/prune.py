"""Take out of a grammar what no finite text can go through.

For grammars that were made from schemas, where such a way is no mistake: an object that counts its
keys has ways on which they become too many, or never enough.
"""

from deepinfer.structured.grammar import Alt, Expr, Grammar, Repeat, Seq
from deepinfer.structured.grammar_facts import productive, reachable


def pruned(grammar: Grammar) -> Grammar | None:
    """The same texts, every rule of use; None if there is no text at all."""
    good = productive(grammar.rules)
    if id(grammar.rules[grammar.root]) not in good:
        return None
    rules = {name: _kept(rule, good) for name, rule in grammar.rules.items() if id(rule) in good}
    fresh = Grammar(rules, grammar.root)
    return Grammar({name: rules[name] for name in reachable(fresh)}, grammar.root)


def _kept(expr: Expr, good: set[int]) -> Expr:
    """`expr`, which has a text, without alternatives that have none."""
    if isinstance(expr, Alt):
        return Alt(tuple(_kept(part, good) for part in expr.parts if id(part) in good))
    if isinstance(expr, Seq):
        return Seq(tuple(_kept(part, good) for part in expr.parts))
    if isinstance(expr, Repeat) and id(expr.part) not in good:
        return Seq(())
    return expr
