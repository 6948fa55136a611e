"""Regular expressions as automata.

A pattern means what ECMA-262 and Python's `re` both say: whoever checks the text finds that it
matches. (For the use under a "not" there is the opposite: whatever either of them would match.)
Where a pattern mixes sets about which they disagree, like [\\d\\D], some texts that match for both
may be missing, but never one too many.

Knows nothing of JSON and its escapes: texts are characters.
"""

from collections.abc import Iterable

from deepinfer.structured import charset
from deepinfer.structured.automaton import MAX_STATES, Dfa, TooManyStates
from deepinfer.structured.charset import CharSet
from deepinfer.structured.minimal import Table, atoms_of, check_raw, minimal
from deepinfer.structured.regex_classes import RegexError
from deepinfer.structured.regex_parse import Anchor, Choice, Node, One, Repeat, Sequence, parse

__all__ = ["RegexError", "full_dfa", "search_dfa"]

MAX_PARTS = 20_000
MAX_WORK = 400_000
NEWLINE = charset.of("\n")

# What is known of the rest of the text: nothing, that it is one newline, that there is none.
OPEN, NEWLINE_LEFT, OVER = range(3)
NUM_MODES = 3
# What the anchor $ makes of what is known. Python's also stands before a last newline.
STRICT_END: dict[int, tuple[int, ...]] = {OPEN: (OVER,), NEWLINE_LEFT: (), OVER: (OVER,)}
WIDE_END = {OPEN: (OVER, NEWLINE_LEFT), NEWLINE_LEFT: (NEWLINE_LEFT,), OVER: (OVER,)}

# A place in the expression, with what is known there: state * NUM_MODES + mode.
Place = int


def search_dfa(pattern: str, *, lenient: bool = False, limit: int = MAX_STATES) -> Dfa:
    """The texts in which the pattern matches somewhere (JSON Schema's `pattern`).

    The anchors ^ and $ stand for the text's ends. lenient: every text that matches for ECMA-262 or
    for Python; otherwise only texts that match for both.
    Raises RegexError for what is wrong or not supported, TooManyStates for what is too large.
    """
    return _Nfa(parse(pattern, wide=lenient), search=True, wide=lenient).determine(limit)


def full_dfa(pattern: str, *, limit: int = MAX_STATES) -> Dfa:
    """The texts that the pattern matches from end to end, as both readers say.

    Raises RegexError for what is wrong or not supported, TooManyStates for what is too large.
    """
    return _Nfa(parse(pattern, wide=False), search=False, wide=False).determine(limit)


class _Nfa:
    """A nondeterministic automaton (Thompson's construction), with anchors as conditional edges."""

    def __init__(self, tree: Node, *, search: bool, wide: bool) -> None:
        self._free: list[list[int]] = []  # for each state: where one can go without a character
        self._at_start: list[list[int]] = []  # ... at the text's start
        self._at_end: list[list[int]] = []  # ... at its end
        self._chars: list[list[tuple[CharSet, int]]] = []
        self._num_parts = 0
        self._work = 0
        self._end_modes = WIDE_END if wide else STRICT_END
        self._reached: dict[Place, frozenset[Place]] = {}
        self._search = search
        start = self._state()
        if search:
            self._chars[start].append((charset.ALL, start))
        self._final = self._state()
        self._free[self._add(tree, start)].append(self._final)
        if search:
            self._chars[self._final].append((charset.ALL, self._final))
        self._start = start

    def determine(self, limit: int) -> Dfa:
        """The smallest deterministic automaton of the same language (subset construction)."""
        edges = [edge for row in self._chars for edge in row]
        atoms, members = atoms_of([*(chars for chars, _ in edges), NEWLINE])
        of_set = {id(chars): atoms for (chars, _), atoms in zip(edges, members, strict=False)}
        newline = members[-1][0]
        start = self._collapse(self._closure(self._start * NUM_MODES, at_start=True))
        numbers = {start: 0}
        order = [start]
        table: Table = []
        num_edges = 0
        for subset in order:  # grows while it is read
            row: dict[int, int] = {}
            for atom, places in self._after(subset, of_set, newline).items():
                target = self._collapse(places)
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
                row[atom] = numbers[target]
            table.append(row)
            num_edges += len(row)
            check_raw(len(order), num_edges, limit)
        final = {self._final * NUM_MODES + OPEN, self._final * NUM_MODES + OVER}
        accepting = {number for number, subset in enumerate(order) if subset & final}
        return minimal(atoms, table, accepting, limit=limit)

    def _after(
        self, subset: frozenset[Place], of_set: dict[int, tuple[int, ...]], newline: int
    ) -> dict[int, set[Place]]:
        """For each atom: the places after one character of it."""
        after: dict[int, set[Place]] = {}
        for place in subset:
            state, mode = divmod(place, NUM_MODES)
            if mode == OVER:
                continue
            for chars, target in self._chars[state]:
                atoms: Iterable[int] = of_set[id(chars)]
                goal = target * NUM_MODES
                if mode == NEWLINE_LEFT:
                    atoms = (newline,) if newline in atoms else ()
                    goal += OVER
                reached = self._reached.get(goal)
                if reached is None:
                    reached = self._reached[goal] = self._closure(goal, at_start=False)
                for atom in atoms:
                    after.setdefault(atom, set()).update(reached)
                    self._count(len(reached))
        return after

    def _closure(self, place: Place, *, at_start: bool) -> frozenset[Place]:
        """The places that can be reached without a character and from which something follows."""
        seen = {place}
        found = [place]
        while found:
            state, mode = divmod(found.pop(), NUM_MODES)
            goals = [target * NUM_MODES + mode for target in self._free[state]]
            if at_start:
                goals += [target * NUM_MODES + mode for target in self._at_start[state]]
            for target in self._at_end[state]:
                goals += [target * NUM_MODES + new for new in self._end_modes[mode]]
            found += [goal for goal in dict.fromkeys(goals) if goal not in seen]
            seen.update(goals)
            self._count(len(goals) + 1)
        return frozenset(one for one in seen if self._matters(one))

    def _matters(self, place: Place) -> bool:
        state, mode = divmod(place, NUM_MODES)
        return state == self._final or (mode != OVER and self._chars[state] != [])

    def _collapse(self, places: Iterable[Place]) -> frozenset[Place]:
        """In a search that has found its match, nothing else matters."""
        subset = frozenset(places)
        found = self._final * NUM_MODES + OPEN
        return frozenset({found}) if self._search and found in subset else subset

    def _count(self, steps: int) -> None:
        self._work += steps
        if self._work > MAX_WORK:
            raise TooManyStates("the expression has too many ways to match")

    def _state(self) -> int:
        for edges in (self._free, self._at_start, self._at_end):
            edges.append([])
        self._chars.append([])
        return len(self._chars) - 1

    def _add(self, node: Node, source: int) -> int:
        """The state after `node`, which begins in the state `source`."""
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise TooManyStates(f"the expression, written out, has more than {MAX_PARTS} parts")
        match node:
            case One(chars):
                target = self._state()
                self._chars[source].append((chars, target))
            case Anchor(at_start):
                target = self._state()
                (self._at_start if at_start else self._at_end)[source].append(target)
            case Sequence(parts):
                target = source
                for part in parts:
                    target = self._add(part, target)
            case Choice(parts):
                target = self._state()
                for part in parts:
                    self._free[self._add(part, source)].append(target)
            case Repeat():
                target = self._add_repeat(node, source)
        return target

    def _add_repeat(self, node: Repeat, source: int) -> int:
        for _ in range(node.low):
            source = self._add(node.part, source)
        target = self._state()
        self._free[source].append(target)
        if node.high is None:
            self._free[self._add(node.part, target)].append(target)
            return target
        for _ in range(node.high - node.low):
            source = self._add(node.part, source)
            self._free[source].append(target)
        return target
