"""Whether a grammar makes sense, said before anything is compiled.

Knows grammars alone: not what they were made from, nor tokens. All walks take time in proportion
to the grammar, and none takes Python stack in proportion to it.
"""

from deepinfer.errors import RequestError
from deepinfer.structured.grammar import (
    Chars,
    Expr,
    Grammar,
    Ref,
    Repeat,
    Seq,
    Text,
    nodes,
    parts_of,
)
from deepinfer.structured.grammar_facts import (
    deeper_than,
    distinct,
    nullable,
    one_character,
    productive,
    reachable,
)

MAX_RULES = 20_000
# Expressions, letters of texts and ranges of character sets, all together.
MAX_SIZE = 500_000
MAX_DEPTH = 100
# A counted repetition of anything but one character is written out, once for each count.
MAX_COPIES = 20_000
# Counting characters is cheap, but no model writes more than this.
MAX_COUNT = 1_000_000

_SIMPLER = "make the schema or grammar smaller, or split the request"


def check(grammar: Grammar, field: str = "so_args.schema") -> None:
    """Raise RequestError unless every rule can be written and matched.

    That is: the root and all rules that are called exist; each rule that the root leads to has at
    least one finite word; none can call itself again before a character was read, as in
    `a ::= a "x"`, also by way of other rules or behind parts that may be empty; and all stays
    within this module's limits. Rules that the root does not lead to are not looked at. The error
    names the rule. field: the request's field that the grammar comes from.
    """
    for refuse in (_undefined, _too_large, _endless, _left_recursive):
        said = refuse(grammar)
        if said is not None:
            what, hint = said
            raise RequestError(what, field=field, hint=hint)


def _undefined(grammar: Grammar) -> tuple[str, str] | None:
    if grammar.root not in grammar.rules:
        return f"there is no rule {grammar.root!r}", "the answer begins with this rule: define it"
    for name in reachable(grammar):
        if name not in grammar.rules:
            return f"rule {name!r} is called but not defined", "define it, or correct its name"
    return None


def _too_large(grammar: Grammar) -> tuple[str, str] | None:
    names = reachable(grammar)
    if len(names) > MAX_RULES:
        return f"{len(names)} rules are more than {MAX_RULES}", _SIMPLER
    size = copies = 0
    for name in names:
        for node in nodes(grammar.rules[name]):
            size += _weight(node)
            if size > MAX_SIZE:
                return f"the grammar is larger than {MAX_SIZE}, up to rule {name!r}", _SIMPLER
            if isinstance(node, Repeat):
                count = max(node.low, node.high or 0)
                if count > MAX_COUNT:
                    return f"rule {name!r} repeats {count} times, above {MAX_COUNT}", _SIMPLER
                copies += 0 if one_character(node.part) else count
                if copies > MAX_COPIES:
                    what = f"counted repetitions, up to rule {name!r}, exceed {MAX_COPIES} in all"
                    return what, "use smaller counts, or * and +"
        if deeper_than(grammar.rules[name], MAX_DEPTH):
            return f"rule {name!r} is nested deeper than {MAX_DEPTH}", "use more rules"
    return None


def _weight(node: Expr) -> int:
    if isinstance(node, Text):
        return 1 + len(node.text)
    if isinstance(node, Chars):
        return 1 + len(node.chars)
    return 1


def _endless(grammar: Grammar) -> tuple[str, str] | None:
    rules = {name: grammar.rules[name] for name in reachable(grammar)}
    with_words = productive(rules)
    if id(rules[grammar.root]) not in with_words and not _calls(rules[grammar.root]):
        return f"no text at all fits rule {grammar.root!r}", "allow at least one answer"
    for name, rule in rules.items():
        if id(rule) not in with_words:
            what = f"rule {name!r} has no finite text: it never ends, or nothing fits it"
            return what, "give it an alternative that ends"
    return None


def _calls(expr: Expr) -> bool:
    return any(isinstance(node, Ref) for node in distinct(expr))


def _left_recursive(grammar: Grammar) -> tuple[str, str] | None:
    rules = {name: grammar.rules[name] for name in reachable(grammar)}
    may_be_empty = nullable(rules)
    first = {name: _first_calls(rule, may_be_empty) for name, rule in rules.items()}
    cycle = _cycle(first)
    if cycle is None:
        return None
    way = " -> ".join(cycle)
    what = f"rule {cycle[0]!r} can call itself before it reads anything (left recursion): {way}"
    return what, 'put the recursion last, as in a ::= "x" a | "x", or use * or +'


def _first_calls(rule: Expr, may_be_empty: set[int]) -> list[str]:
    """The rules that may be called before `rule` has read a character."""
    found: dict[str, None] = {}
    todo, seen = [rule], {id(rule)}
    while todo:
        node = todo.pop()
        first = list(parts_of(node))
        if isinstance(node, Ref):
            found[node.name] = None
        elif isinstance(node, Seq):
            empty = [id(part) in may_be_empty for part in first]
            first = first[: empty.index(False) + 1] if False in empty else first
        fresh = [part for part in reversed(first) if id(part) not in seen]
        seen.update(map(id, fresh))
        todo.extend(fresh)
    return list(found)


def _cycle(calls: dict[str, list[str]]) -> list[str] | None:
    """Names that call each other in a ring, the first one again at the end; None: no ring."""
    done: set[str] = set()
    for start in calls:
        path = {} if start in done else {start: iter(calls[start])}
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                done.add(name)
                del path[name]
            elif following in path:
                ring = list(path)
                return [*ring[ring.index(following) :], following]
            elif following not in done:
                path[following] = iter(calls[following])
    return None
