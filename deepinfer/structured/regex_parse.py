"""Reads a regular expression into a tree.

The syntax is what ECMA-262 and Python's `re` have in common; what only one of them has is read if
the other would call it an error, and refused if the other would read it as something else. Groups
do not remember anything, and a lazy repetition is an ordinary one: the tree says which texts match,
not how. Knows no automata.
"""

import re
from dataclasses import dataclass, field

from deepinfer.structured.charset import CharSet
from deepinfer.structured.regex_classes import (
    Piece,
    RegexError,
    bracket,
    escape,
    literal,
    named,
)

MAX_DEPTH = 50
MAX_LENGTH = 20_000

COUNT = re.compile(r"\{([0-9]+)(,?)([0-9]*)\}")
HALF_COUNT = re.compile(r"\{,[0-9]*\}")
GROUP_NAME = re.compile(r"\(\?P?<([A-Za-z_][A-Za-z0-9_]*)>")
REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
# How a group begins that is refused: (what it is, way out). The longer beginnings stand first.
NO_GROUPS = {
    "(?<=": ("look-behind", "say it without: an anchor, a class, or alternatives"),
    "(?<!": ("look-behind", "say it without: an anchor, a class, or alternatives"),
    "(?=": ("look-ahead", "say it without: an anchor, a class, or alternatives"),
    "(?!": ("look-ahead", "say it without: an anchor, a class, or alternatives"),
    "(?>": ("an atomic group", "write (?:...)"),
    "(?#": ("a comment", "leave it out"),
    "(?(": ("a condition", "write alternatives"),
    "(?P=": ("a back-reference", "repeat what it refers to, if that is always the same"),
    "(?<": ("a group with a wrong name", "write letters, digits and _"),
    "(?P<": ("a group with a wrong name", "write letters, digits and _"),
    "(?": ("a flag", "write it out: [aA] for a in either case"),
}


@dataclass(frozen=True)
class One:
    """One character of the set."""

    chars: CharSet


@dataclass(frozen=True)
class Anchor:
    """The text's start, or its end."""

    at_start: bool


@dataclass(frozen=True)
class Sequence:
    """One part after the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Choice:
    """Any of the parts."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Repeat:
    """The part, low to high times; without end if high is None."""

    part: "Node"
    low: int
    high: int | None


Node = One | Anchor | Sequence | Choice | Repeat


@dataclass
class _Group:
    """A group that is not closed yet."""

    start: int
    choices: list[Node] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)

    def finish(self) -> Node:
        self.next_choice()
        return self.choices[0] if len(self.choices) == 1 else Choice(tuple(self.choices))

    def next_choice(self) -> None:
        whole = self.parts[0] if len(self.parts) == 1 else Sequence(tuple(self.parts))
        self.choices.append(whole)
        self.parts = []


def parse(pattern: str, *, wide: bool) -> Node:
    """The tree. wide: which form its sets of characters have (regex_classes.py).

    Raises RegexError. Its depth is at most 3 times MAX_DEPTH.
    """
    if len(pattern) > MAX_LENGTH:
        raise RegexError(f"more than {MAX_LENGTH} characters", MAX_LENGTH, "shorten the pattern")
    open_groups = [_Group(0)]
    names: set[str] = set()
    place = 0
    while place < len(pattern):
        here, group = pattern[place], open_groups[-1]
        if here == "(":
            open_groups.append(_Group(place))
            if len(open_groups) > MAX_DEPTH:
                what = f"groups nested more than {MAX_DEPTH} deep"
                raise RegexError(what, place, "nest less deep")
            place = _open(pattern, place, names)
            continue
        if here == "|":
            group.next_choice()
            place += 1
            continue
        if here in "^$":
            group.parts.append(Anchor(here == "^"))
            place = _no_repeat(pattern, place + 1)
            continue
        if here == ")":
            if len(open_groups) == 1:
                raise RegexError("a ) without a (", place, "write \\) for the bracket")
            part, place = open_groups.pop().finish(), place + 1
        else:
            piece = _piece(pattern, place, wide=wide)
            part, place = One(piece.chars), piece.end
        part, place = _repeated(pattern, place, part)
        open_groups[-1].parts.append(part)
    if len(open_groups) > 1:
        what = "a ( that is not closed"
        raise RegexError(what, open_groups[-1].start, "write ), or \\( for the bracket")
    return open_groups[0].finish()


def _open(pattern: str, place: int, names: set[str]) -> int:
    """The position after a group's beginning."""
    if pattern.startswith("(?:", place):
        return _no_repeat(pattern, place + 3)
    named_group = GROUP_NAME.match(pattern, place)
    if named_group is not None:
        if named_group[1] in names:
            what = f"two groups named {named_group[1]}"
            raise RegexError(what, place, "give each a name of its own")
        names.add(named_group[1])
        return _no_repeat(pattern, named_group.end())
    for beginning, (what, hint) in NO_GROUPS.items():
        if pattern.startswith(beginning, place):
            raise RegexError(f"{what}, which is not supported", place, hint)
    return _no_repeat(pattern, place + 1)


def _piece(pattern: str, place: int, *, wide: bool) -> Piece:
    here = pattern[place]
    if here == "\\":
        return escape(pattern, place, wide=wide)
    if here == "[":
        return bracket(pattern, place, wide=wide)
    if here == ".":
        return Piece(named(".", wide), None, place + 1)
    _no_repeat(pattern, place)
    return literal(pattern, place)


def _repeated(pattern: str, place: int, part: Node) -> tuple[Node, int]:
    """(the part with the repetition that stands at `place`, if one does; position after it)."""
    times, end = _times(pattern, place)
    if times is None:
        return part, place
    low, high = times
    if high is not None and high < low:
        raise RegexError("a repetition with its limits exchanged", place, "exchange them")
    if pattern.startswith("+", end):
        what = "a possessive repetition, which is not supported"
        raise RegexError(what, end, "leave the + out")
    end += pattern.startswith("?", end)  # lazy: the same texts match
    return Repeat(part, low, high), _no_repeat(pattern, end)


def _no_repeat(pattern: str, place: int) -> int:
    """`place`, if no repetition stands there."""
    if _times(pattern, place)[0] is not None:
        what = f"{pattern[place]} with nothing before it that it could repeat"
        raise RegexError(what, place, f"write \\{pattern[place]} for the character")
    return place


def _times(pattern: str, place: int) -> tuple[tuple[int, int | None] | None, int]:
    """(low and high of the repetition that stands at `place`, None if none does; end of it)."""
    here = pattern[place : place + 1]
    if here in REPEATS:
        return REPEATS[here], place + 1
    if HALF_COUNT.match(pattern, place):
        what = "a repetition without its lower limit is read in two ways"
        raise RegexError(what, place, "write {0,n} for the repetition, \\{ for the bracket")
    count = COUNT.match(pattern, place)
    if count is None:
        return None, place
    least, comma, most = count.groups()
    if max(len(least), len(most)) > 9:
        raise RegexError("a repetition with too large a limit", place, "use smaller numbers")
    low = int(least)
    return (low, int(most) if most else (None if comma else low)), count.end()
