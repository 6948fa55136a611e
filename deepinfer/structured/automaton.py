"""What can be done with regular languages: combine them, count them, measure them, ask them.

A language is a `Dfa` over characters, always the smallest one (minimal.py). Knows neither regular
expressions nor JSON.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet
from deepinfer.structured.measure import accepts, length_range, words
from deepinfer.structured.minimal import (
    ANY,
    MAX_STATES,
    NOTHING,
    Dfa,
    Table,
    TooManyStates,
    check_ranges,
    check_raw,
    minimal,
    numbered,
    table_of,
)

__all__ = [
    "ANY",
    "MAX_STATES",
    "NOTHING",
    "Dfa",
    "TooManyStates",
    "accepts",
    "build",
    "complement",
    "intersect",
    "is_any",
    "is_empty",
    "length_between",
    "length_range",
    "literals",
    "subtract",
    "union",
    "words",
]

State = TypeVar("State")
NOWHERE = -1


def build(
    start: State,
    step: Callable[[State], Iterable[tuple[CharSet, State]]],
    accepts: Callable[[State], bool],
    *,
    limit: int = MAX_STATES,
) -> Dfa:
    """The Dfa of an automaton that is given as a function.

    step: the (disjoint sets of characters, next state) of a state. A state is any value that can be
    a key. Raises TooManyStates.
    """
    numbers: dict[State, int] = {start: 0}
    order = [start]
    edges: list[list[tuple[CharSet, int]]] = []
    for state in order:  # grows while it is read
        row = []
        for chars, target in step(state):
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            if chars:
                row.append((chars, numbers[target]))
        edges.append(row)
        check_raw(len(order), len(edges), limit)
    accepting = {number for number, state in enumerate(order) if accepts(state)}
    atoms, rows = table_of(edges)
    return minimal(atoms, rows, accepting, limit=limit)


def literals(texts: Iterable[str], *, limit: int = MAX_STATES) -> Dfa:
    """Exactly these texts. One with a surrogate in it is no text and left out.

    Raises TooManyStates.
    """
    children: list[dict[str, int]] = [{}]
    accepting = set()
    for text in texts:
        if any("\ud800" <= one <= "\udfff" for one in text):
            continue
        state = 0
        for one in text:
            if one not in children[state]:
                children[state][one] = len(children)
                children.append({})
            state = children[state][one]
        check_raw(len(children), len(children), limit)
        accepting.add(state)
    sets = {one: charset.of(one) for row in children for one in row}
    atoms, rows = table_of([[(sets[one], to) for one, to in row.items()] for row in children])
    return minimal(atoms, rows, accepting, limit=limit)


def length_between(low: int, high: int | None, *, limit: int = MAX_STATES) -> Dfa:
    """All texts of low to high characters; of any number from low on if high is None.

    Raises TooManyStates.
    """
    low = max(low, 0)
    if high is not None and high < low:
        return NOTHING
    last = low if high is None else high
    if last >= limit:
        raise TooManyStates(f"a length of {last} needs {last + 1} states, at most {limit}")
    after = [() if high is not None else ((charset.ALL, last),)]
    steps = [((charset.ALL, length + 1),) for length in range(last)]
    return Dfa((*steps, *after), frozenset(range(low, last + 1)))


def intersect(a: Dfa, b: Dfa, *, limit: int = MAX_STATES) -> Dfa:
    """The texts that are in both. Raises TooManyStates."""
    if ANY in (a, b):
        return b if is_any(a) else a
    return _product(a, b, keep=lambda in_a, in_b: in_a and in_b, limit=limit)


def union(a: Dfa, b: Dfa, *, limit: int = MAX_STATES) -> Dfa:
    """The texts that are in either. Raises TooManyStates."""
    return _product(a, b, keep=lambda in_a, in_b: in_a or in_b, limit=limit)


def subtract(a: Dfa, b: Dfa, *, limit: int = MAX_STATES) -> Dfa:
    """The texts of `a` that are not in `b`. Raises TooManyStates."""
    return _product(a, b, keep=lambda in_a, in_b: in_a and not in_b, limit=limit)


def complement(a: Dfa, *, limit: int = MAX_STATES) -> Dfa:
    """All texts that are not in `a`. Raises TooManyStates."""
    # `a` is minimal, and so is its complement. What led nowhere now leads to a state where all is
    # accepted; the state where all was accepted, if there is one, now leads nowhere.
    anything = len(a.edges)
    edges = {anything: [(charset.ALL, anything)]}
    lost = {state for state, row in enumerate(a.edges) if row == ((charset.ALL, state),)}
    lost &= a.accepting
    if 0 in lost or is_empty(a):
        return NOTHING if lost else ANY
    rests: dict[tuple[int, ...], CharSet] = {}  # by identity: many states have the same sets
    num_ranges = 0
    for state, row in enumerate(a.edges):
        key = tuple(id(chars) for chars, _ in row)
        if key not in rests:
            num_ranges += sum(len(chars) for chars, _ in row)
            check_ranges(num_ranges)
            rests[key] = charset.complement(charset.union(*(chars for chars, _ in row)))
        edges[state] = [one for one in row if one[1] not in lost]
        if rests[key]:
            edges[state].append((rests[key], anything))
    accepting = set(range(anything + 1)) - a.accepting
    return numbered(edges, accepting, 0, limit)


def is_empty(a: Dfa) -> bool:
    """Whether no text is in `a`."""
    return not a.accepting


def is_any(a: Dfa) -> bool:
    """Whether every text is in `a`."""
    return a == ANY


def _product(a: Dfa, b: Dfa, *, keep: Callable[[bool, bool], bool], limit: int) -> Dfa:
    """The texts for which `keep` of (is it in `a`, is it in `b`) holds; not those in neither."""
    atoms, rows = table_of([*a.edges, *b.edges])
    rows_a: Table = [*rows[: len(a.edges)], {}]  # the last row: NOWHERE
    rows_b: Table = [*rows[len(a.edges) :], {}]
    needs_a, needs_b = not keep(False, True), not keep(True, False)
    numbers = {(0, 0): 0}
    order = [(0, 0)]
    table: Table = []
    num_edges = 0
    for at_a, at_b in order:  # grows while it is read
        row_a, row_b, row = rows_a[at_a], rows_b[at_b], {}
        for atom in row_a.keys() | row_b.keys():
            pair = row_a.get(atom, NOWHERE), row_b.get(atom, NOWHERE)
            if (needs_a and pair[0] == NOWHERE) or (needs_b and pair[1] == NOWHERE):
                continue
            if pair not in numbers:
                numbers[pair] = len(order)
                order.append(pair)
            row[atom] = numbers[pair]
        table.append(row)
        num_edges += len(row)
        check_raw(len(order), num_edges, limit)
    accepting = {
        number
        for number, (at_a, at_b) in enumerate(order)
        if keep(at_a in a.accepting, at_b in b.accepting)
    }
    return minimal(atoms, table, accepting, limit=limit)
