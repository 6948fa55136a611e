"""Facts about a grammar that follow from all its rules together.

Knows grammars alone. All walks take time in proportion to the grammar, and none takes Python stack
in proportion to it.
"""

from collections.abc import Callable, Iterable, Iterator

from deepinfer.structured.grammar import Chars, Expr, Grammar, Ref, Repeat, Seq, Text, parts_of

# More parts than any expression has.
_NEVER = 1 << 60


def reachable(grammar: Grammar) -> list[str]:
    """The root and the rules that it leads to, in the order in which they are first called.

    Names without a rule are among them.
    """
    found = {grammar.root: None}
    todo = [grammar.root]
    for name in todo:  # grows as it is read
        if name in grammar.rules:
            for node in distinct(grammar.rules[name]):
                if isinstance(node, Ref) and node.name not in found:
                    found[node.name] = None
                    todo.append(node.name)
    return todo


def distinct(expr: Expr) -> Iterator[Expr]:
    """`expr` and all that it is made of; an object that occurs in several places comes once."""
    seen: set[int] = set()
    todo = [expr]
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            todo.extend(reversed(parts_of(node)))


def nullable(rules: dict[str, Expr]) -> set[int]:
    """`id` of each expression in `rules` that has the empty word."""

    def parts_needed(node: Expr) -> int:
        if isinstance(node, Text):
            return _NEVER if node.text else 0
        return _NEVER if isinstance(node, Chars) else _all_or_one(node)

    return _settle(rules, parts_needed)


def productive(rules: dict[str, Expr]) -> set[int]:
    """`id` of each expression in `rules` that has a finite word."""

    def parts_needed(node: Expr) -> int:
        if isinstance(node, Chars):
            return 0 if node.chars else _NEVER
        return 0 if isinstance(node, Text) else _all_or_one(node)

    return _settle(rules, parts_needed)


def with_letters(rules: dict[str, Expr], with_words: set[int]) -> set[int]:
    """`id` of each expression in `rules` that has a finite word other than the empty one.

    with_words: what `productive` says about the same rules.
    """

    def parts_needed(node: Expr) -> int:
        if id(node) not in with_words or (isinstance(node, Repeat) and node.high == 0):
            return _NEVER
        return 0 if isinstance(node, Chars) or (isinstance(node, Text) and node.text) else 1

    return _settle(rules, parts_needed)


def one_character(expr: Expr) -> bool:
    """Whether every word of `expr` is plainly one character, so that counting it is cheap."""
    return isinstance(expr, Chars) or (isinstance(expr, Text) and len(expr.text) == 1)


def deeper_than(expr: Expr, limit: int) -> bool:
    """Whether expressions are nested in each other more than `limit` deep."""
    level: list[Expr] = [expr]
    for _ in range(limit):
        level = [part for node in level for part in parts_of(node)]
        if not level:
            return False
    return True


def _all_or_one(node: Expr) -> int:
    """How many parts must have a property that a sequence has if all parts have it.

    Alternatives need it in one, a reference in its rule, and a repetition that may be left out
    nowhere.
    """
    if isinstance(node, Seq):
        return len(node.parts)
    return 0 if isinstance(node, Repeat) and not node.low else 1


def _settle(rules: dict[str, Expr], parts_needed: Callable[[Expr], int]) -> set[int]:
    """`id` of each expression with a property that enough of its parts must have.

    The smallest such set: two rules that only refer to each other do not have the property.
    """
    missing: dict[int, int] = {}
    wholes: dict[int, list[int]] = {}
    for node in _all_distinct(rules):
        parts: Iterable[Expr] = parts_of(node)
        if isinstance(node, Ref):
            parts = (rules[node.name],) if node.name in rules else ()
        for part in parts:
            wholes.setdefault(id(part), []).append(id(node))
        missing[id(node)] = parts_needed(node)
    holds = [one for one, needed in missing.items() if needed == 0]
    for one in holds:  # grows as it is read
        for whole in wholes.get(one, ()):
            missing[whole] -= 1
            if missing[whole] == 0:
                holds.append(whole)
    return set(holds)


def _all_distinct(rules: dict[str, Expr]) -> Iterable[Expr]:
    return {id(node): node for rule in rules.values() for node in distinct(rule)}.values()
