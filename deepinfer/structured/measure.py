"""What a regular language holds: is a text in it, how long are its texts, which are they.

Knows finished automata only.
"""

from deepinfer.structured import charset
from deepinfer.structured.minimal import Dfa


def accepts(a: Dfa, text: str) -> bool:
    """Whether `text` is in `a`."""
    state = 0
    for one in text:
        code = ord(one)
        target = next((to for chars, to in a.edges[state] if charset.contains(chars, code)), None)
        if target is None:
            return False
        state = target
    return state in a.accepting


def length_range(a: Dfa) -> tuple[int, int | None]:
    """(length of the shortest text, of the longest); None if there is no longest.

    (0, 0) for the empty language, which has neither.
    """
    shortest = [0]  # states are numbered breadth-first
    distance = {0: 0}
    for state in shortest:  # grows while it is read
        for _, target in a.edges[state]:
            if target not in distance:
                distance[target] = distance[state] + 1
                shortest.append(target)
    order = _order(a)
    longest: dict[int, int] = {}
    for state in reversed(order or []):
        longest[state] = max((longest[target] + 1 for _, target in a.edges[state]), default=0)
    low = min((distance[state] for state in a.accepting), default=0)
    return low, None if order is None else longest[0]


def words(a: Dfa, most: int) -> list[str] | None:
    """All texts of `a`, the shortest first, if there are at most `most`; else None."""
    order = _order(a)
    if order is None:
        return None
    num_words: dict[int, int] = {}
    for state in reversed(order):
        num_words[state] = (state in a.accepting) + sum(
            charset.size(chars) * num_words[target] for chars, target in a.edges[state]
        )
    if num_words[0] > most:
        return None
    found: list[str] = []
    begun = [("", 0)]
    for text, state in begun:  # grows while it is read
        if state in a.accepting:
            found.append(text)
        for chars, target in a.edges[state]:
            for low, high in chars:
                begun.extend((text + chr(code), target) for code in range(low, high + 1))
    return found


def _order(a: Dfa) -> list[int] | None:
    """The states, each after all that lead to it; None if there is a circle."""
    num_before = [0] * len(a.edges)
    for row in a.edges:
        for _, target in row:
            num_before[target] += 1
    order = [] if num_before[0] else [0]
    for state in order:  # grows while it is read
        for _, target in a.edges[state]:
            num_before[target] -= 1
            if not num_before[target]:
                order.append(target)
    return order if len(order) == len(a.edges) else None
