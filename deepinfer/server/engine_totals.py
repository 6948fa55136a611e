"""Counts of the engine that go on growing when it is started again.

A new engine counts from zero. Whoever watches a counter takes a fall for a fault, so what dead
engines had counted when they were last heard is added. Knows counts; does not know processes.
"""

from dataclasses import fields, replace
from itertools import zip_longest

from deepinfer.messages import EngineStats

_TOTALS = tuple(one.name for one in fields(EngineStats) if one.name.endswith("_total"))


def added(dead: EngineStats, living: EngineStats) -> EngineStats:
    """The living engine's state, with the counts of both."""
    slots = zip_longest(dead.accepted_by_slot, living.accepted_by_slot, fillvalue=0)
    counts = {name: getattr(dead, name) + getattr(living, name) for name in _TOTALS}
    return replace(living, accepted_by_slot=tuple(a + b for a, b in slots), **counts)
