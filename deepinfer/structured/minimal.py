"""From any deterministic automaton to the one smallest Dfa of its language.

Works on tables: the characters are first cut into atoms, sets whose characters no edge tells
apart, and a row of a table says for each atom which state follows; an atom that is missing leads
nowhere. Knows neither regular expressions nor what an automaton is for.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet

MAX_STATES = 2000
# What may be there before the minimal automaton is known. A hostile input ends here, in well under
# half a second.
RAW_FACTOR = 4
MAX_EDGES = 80_000
MAX_SETS = 3000
MAX_RANGES = 200_000  # of all sets together

Table = list[dict[int, int]]


class TooManyStates(Exception):
    """The automaton, or the work to build it, is larger than the limit."""


@dataclass(frozen=True)
class Dfa:
    """A regular language. Equal languages are equal objects, so a Dfa can be a key.

    edges: for each state its (characters, next state); the start is state 0. The sets of one state
    are disjoint and ordered by their first character, and each leads to another state. A character
    in none of them ends in a refusal.
    accepting: the states in which a word may end.

    Every state can be reached and can reach a word's end, and no two of them mean the same; they
    are numbered breadth-first. The empty language is one state without edges that does not accept.
    """

    edges: tuple[tuple[tuple[CharSet, int], ...], ...]
    accepting: frozenset[int]

    @property
    def num_states(self) -> int:
        """Counts the start as well; at least 1."""
        return len(self.edges)


NOTHING = Dfa(((),), frozenset())
ANY = Dfa((((charset.ALL, 0),),), frozenset({0}))


def atoms_of(sets: Sequence[CharSet]) -> tuple[list[CharSet], list[tuple[int, ...]]]:
    """(the atoms, ordered by first character; for each of the sets the atoms that it consists of).

    Raises TooManyStates if there are too many sets, or too many ranges or overlaps in them.
    """
    bit_of = {chars: bit for bit, chars in enumerate(dict.fromkeys(sets))}
    if len(bit_of) > MAX_SETS:
        raise TooManyStates(f"more than {MAX_SETS} different character classes")
    check_ranges(sum(map(len, bit_of)))
    marks: dict[int, int] = {}  # code point: the sets that begin or end before it, as bits
    for chars, bit in bit_of.items():
        for low, high in chars:
            marks[low] = marks.get(low, 0) ^ (1 << bit)
            marks[high + 1] = marks.get(high + 1, 0) ^ (1 << bit)
    pieces: dict[int, list[tuple[int, int]]] = {}  # the sets around it, as bits: the ranges
    places = sorted(marks)
    around = 0
    for low, after in pairwise(places):
        around ^= marks[low]
        if around:
            pieces.setdefault(around, []).append((low, after - 1))
    members: list[list[int]] = [[] for _ in bit_of]
    num_members = 0
    for atom, bits in enumerate(pieces):
        num_members += bits.bit_count()
        if num_members > MAX_EDGES:
            raise TooManyStates("the character classes overlap in too many ways")
        for bit in _bits(bits):
            members[bit].append(atom)
    atoms = [charset.from_ranges(one) for one in pieces.values()]
    return atoms, [tuple(members[bit_of[chars]]) for chars in sets]


def check_raw(num_states: int, num_edges: int, limit: int) -> None:
    """Raises TooManyStates if an automaton grew too large to be made minimal."""
    if num_states > RAW_FACTOR * limit or num_edges > MAX_EDGES:
        raise TooManyStates(f"more than {limit} states, or too many edges")


def check_ranges(num_ranges: int) -> None:
    """Raises TooManyStates if sets of characters grew too large to work with."""
    if num_ranges > MAX_RANGES:
        raise TooManyStates("too many character classes of too many ranges")


def table_of(edges: Sequence[Iterable[tuple[CharSet, int]]]) -> tuple[list[CharSet], Table]:
    """(atoms, table) of an automaton's edges. Raises TooManyStates."""
    # By identity: the same set stands at many edges, and to compare large ones takes long.
    sets = {id(chars): chars for row in edges for chars, _ in row}
    atoms, members = atoms_of(list(sets.values()))
    members_of = dict(zip(sets, members, strict=True))
    table: Table = []
    num_edges = 0
    for row in edges:
        cells = {atom: target for chars, target in row for atom in members_of[id(chars)]}
        table.append(cells)
        num_edges += len(cells)
        check_raw(0, num_edges, MAX_STATES)
    return atoms, table


def minimal(
    atoms: Sequence[CharSet], table: Table, accepting: AbstractSet[int], *, limit: int = MAX_STATES
) -> Dfa:
    """The Dfa of a table, whose start is row 0. Raises TooManyStates."""
    alive = _alive(table, accepting)
    if 0 not in alive:
        return NOTHING
    rows = [
        {atom: target for atom, target in row.items() if target in alive} if state in alive else {}
        for state, row in enumerate(table)
    ]
    block_of = _equal_states(rows, accepting, alive)
    sample = {block_of[state]: state for state in alive}  # any state of each block
    names: dict[tuple[int, ...], CharSet] = {}
    num_ranges = 0
    edges: dict[int, list[tuple[CharSet, int]]] = {}
    for block, state in sample.items():
        by_target: dict[int, list[int]] = {}
        for atom in sorted(rows[state]):
            by_target.setdefault(block_of[rows[state][atom]], []).append(atom)
        edges[block] = []
        for target, members in by_target.items():
            key = tuple(members)
            if key not in names:
                num_ranges += sum(len(atoms[atom]) for atom in members)
                check_ranges(num_ranges)
                names[key] = charset.union(*(atoms[atom] for atom in members))
            edges[block].append((names[key], target))
    return numbered(edges, {block_of[state] for state in accepting & alive}, block_of[0], limit)


def numbered(
    edges: Mapping[int, list[tuple[CharSet, int]]],
    accepting: AbstractSet[int],
    start: int,
    limit: int,
) -> Dfa:
    """The Dfa of an automaton that is minimal but for the order and the names of its states."""
    numbers = {start: 0}
    order = [start]
    rows = []
    for state in order:  # grows while it is read
        row = sorted(edges[state])
        for _, target in row:
            if target not in numbers:
                numbers[target] = len(order)
                order.append(target)
        rows.append(tuple((chars, numbers[target]) for chars, target in row))
    if len(order) > limit:
        raise TooManyStates(f"{len(order)} states, at most {limit}")
    return Dfa(tuple(rows), frozenset(numbers[state] for state in accepting if state in numbers))


def _alive(table: Table, accepting: AbstractSet[int]) -> set[int]:
    """The states from which a word's end can be reached."""
    sources: list[list[int]] = [[] for _ in table]
    for state, row in enumerate(table):
        for target in set(row.values()):
            sources[target].append(state)
    alive = set(accepting)
    found = list(accepting)
    while found:
        for source in sources[found.pop()]:
            if source not in alive:
                alive.add(source)
                found.append(source)
    return alive


def _equal_states(rows: Table, accepting: AbstractSet[int], alive: set[int]) -> dict[int, int]:
    """State: number of its block of states that mean the same (Hopcroft's algorithm).

    The rows have only states that are alive. The missing edges lead to one more state that is in
    no block: it need not be a splitter as long as every block has been one.
    """
    sources: dict[int, dict[int, list[int]]] = {state: {} for state in alive}
    for state in alive:
        for atom, target in rows[state].items():
            sources[target].setdefault(atom, []).append(state)
    blocks = [block for block in (alive & accepting, alive - accepting) if block]
    block_of = {state: number for number, block in enumerate(blocks) for state in block}
    pending = list(range(len(blocks)))
    while pending:
        splitter = blocks[pending.pop()]
        before: dict[int, list[int]] = {}
        for state in splitter:
            for atom, states in sources[state].items():
                before.setdefault(atom, []).extend(states)
        for states in before.values():
            for new in _split(states, blocks, block_of):
                pending.append(new)
    return block_of


def _split(states: list[int], blocks: list[set[int]], block_of: dict[int, int]) -> Iterator[int]:
    """Cut each block into its states inside and outside `states`; numbers of the new blocks.

    The new block is always the smaller part: each state changes its block few times.
    """
    touched: dict[int, set[int]] = {}
    for state in states:
        touched.setdefault(block_of[state], set()).add(state)
    for number, inside in touched.items():
        block = blocks[number]
        if len(inside) == len(block):
            continue
        small = inside if 2 * len(inside) <= len(block) else block - inside
        block -= small
        for state in small:
            block_of[state] = len(blocks)
        blocks.append(small)
        yield len(blocks) - 1


def _bits(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
