"""Arrays and objects -> rules: chains of items and keys that count as far as there is a limit.

A rule stands for all that may still come, up to the closing bracket. `gap` and `space` are rules of
the whole grammar.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deepinfer.structured.document import SchemaSet
from deepinfer.structured.grammar import Alt, Expr, Ref, Seq, Text
from deepinfer.structured.layout import ArrayLayout, ObjectLayout

_GAP, _SPACE = Ref("gap"), Ref("space")
Names = Mapping[SchemaSet, str]


def array_rules(name: str, layout: ArrayLayout, names: Names) -> dict[str, Expr]:
    """The array's rule `name`, and a rule for what may follow each number of items."""
    num_places, last = len(layout.items), layout.high
    # From this number of items on there is nothing left to count.
    steady = max(num_places, layout.low, 1)
    end = steady if last is None else last
    rules: dict[str, Expr] = {name: Seq((Text("["), _GAP, Ref(f"{name}_0")))}
    for count in range(end + 1):
        ways: list[Expr] = []
        if count >= layout.low:
            ways.append(Text("]") if count == 0 else Seq((_GAP, Text("]"))))
        item = layout.items[count] if count < num_places else layout.rest
        if item is not None and (last is None or count < last):
            following = min(count + 1, end)
            comma = (Text(","), _GAP) if count else ()
            ways.append(Seq((*comma, Ref(names[item]), Ref(f"{name}_{following}"))))
        rules[f"{name}_{count}"] = Alt(tuple(ways))
    return rules


@dataclass(frozen=True)
class _Place:
    """Where an object stands: how many fields are decided, and which keys were written.

    count: keys so far, as far as a limit makes them count; has_keys: there is one already.
    """

    num_fields: int = 0
    count: int = 0
    has_keys: bool = False
    has_others: bool = False

    def rule(self, name: str) -> str:
        """The name of the rule for what may still come."""
        return f"{name}_{self.num_fields}_{self.count}_{self.has_keys:d}{self.has_others:d}"


def object_rules(
    name: str, layout: ObjectLayout, names: Names, keys: Sequence[Expr]
) -> dict[str, Expr]:
    """The object's rule `name`, and one for each place in it.

    keys: how the keys of `layout.others` are spelled, in their order.
    """
    if layout.low <= layout.num_required:
        layout = replace(layout, low=0)
    start = _Place()
    rules: dict[str, Expr] = {name: Seq((Text("{"), _GAP, Ref(start.rule(name))))}
    waiting = [start]
    while waiting:
        place = waiting.pop()
        if place.rule(name) in rules:
            continue
        ways = _ways(name, layout, names, keys, place)
        rules[place.rule(name)] = Alt(tuple(expr for expr, _ in ways))
        waiting += [following for _, following in ways if following is not None]
    return rules


def _ways(
    name: str, layout: ObjectLayout, names: Names, keys: Sequence[Expr], place: _Place
) -> list[tuple[Expr, _Place | None]]:
    """What may come at a place, and where that leads."""
    comma: tuple[Expr, ...] = (Text(","), _GAP) if place.has_keys else ()
    ways: list[tuple[Expr, _Place | None]] = []
    fields, is_full = layout.fields, place.count == layout.high
    counted = _count(layout, place)
    if place.num_fields < len(fields):
        field, done = fields[place.num_fields], place.num_fields + 1
        if not is_full:
            following = _Place(done, counted, has_keys=True)
            spelled = Text(f"{json.dumps(field.key, ensure_ascii=False)}:")
            pair = (*comma, spelled, _SPACE, Ref(names[field.values]), Ref(following.rule(name)))
            ways.append((Seq(pair), following))
        if not field.is_required:
            following = _Place(done, place.count, place.has_keys)
            ways.append((Ref(following.rule(name)), following))
        return ways
    # Other keys may repeat, and a key that comes twice is one key: only the first counts upwards.
    if place.count >= layout.low:
        ways.append((Seq((_GAP, Text("}"))) if place.has_keys else Text("}"), None))
    if not is_full:
        is_first = not place.has_others
        count = counted if is_first or layout.high is not None else place.count
        if is_first or place.count >= layout.low:
            following = _Place(place.num_fields, count, has_keys=True, has_others=True)
            for key, other in zip(keys, layout.others, strict=True):
                pair = (*comma, key, Text(":"), _SPACE, Ref(names[other.values]))
                ways.append((Seq((*pair, Ref(following.rule(name)))), following))
    return ways


def _count(layout: ObjectLayout, place: _Place) -> int:
    """The number of keys after one more; it stops where nothing depends on it."""
    return place.count + 1 if layout.high is not None else min(place.count + 1, layout.low)
