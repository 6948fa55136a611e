"""Mistakes that other engines made with recursive, deep and wide schemas, by their number."""

from itertools import pairwise
from typing import Any

import pytest

from tests.effort import effort
from tests.unit.structured.judge import Judge, assert_sound, written
from tests.unit.structured.schema_cases import obj

_NODE = obj(["v"], v={"type": "integer"}, children={"type": "array", "items": {"$ref": "#"}})
_RECURSIVE = {
    "tree": _NODE,
    "tree in $defs": {"$ref": "#/$defs/node", "$defs": {"node": _NODE}}
    | {"$defs": {"node": obj(["v"], v={}, next={"$ref": "#/$defs/node"})}},
    "mutual": {
        "$ref": "#/$defs/a",
        "$defs": {
            "a": obj([], b={"$ref": "#/$defs/b"}),
            "b": obj([], a={"$ref": "#/$defs/a"}, list={"items": {"$ref": "#/$defs/b"}}),
        },
    },
    "root": {"type": "array", "items": {"$ref": "#"}},
    "root, or": {"anyOf": [{"type": "null"}, obj(next={"$ref": "#"})]},
    "all of": {"allOf": [obj([], a={"$ref": "#"}), {"properties": {"a": {"required": ["a"]}}}]},
}


@pytest.mark.parametrize("schema", _RECURSIVE.values(), ids=_RECURSIVE)
def test_d13_recursion(judge: Judge, schema: Any) -> None:
    """D13: a schema that refers to itself crashes the compiler."""
    with effort(60):
        text = written(schema)
        judge.matcher(text)
    assert len(text) < 20_000
    assert_sound(judge, schema, 100)


def test_d13_depth_is_limited_by_tokens_only(judge: Judge) -> None:
    """D13: a tree deeper than the grammar was written out is refused."""
    depth = 200
    text = '{"v":1,"children":[' * depth + '{"v":2}' + "]}" * depth
    assert judge.accepts(written(_NODE), text)
    assert not judge.accepts(written(_NODE), text.replace("2", '"2"'))


def test_d14_size_grows_with_the_depth(judge: Judge) -> None:
    """D14: each level of arrays in arrays doubles the grammar, and 22 levels take 180 MB."""
    sizes, schema = [], {"type": "integer"}
    with effort(250):
        for depth in range(1, 33):
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}
            sizes.append(len(written(schema)))
            word = "[" * depth + "7" + "]" * depth
            assert judge.accepted(written(schema), [word, word[1:-1], f"[{word}]"]) == [word]
    steps = [after - before for before, after in pairwise(sizes)]
    assert max(steps) <= 2 * min(steps)


def test_d14_many_items(judge: Judge) -> None:
    """D14: bounded item counts hang, or are off by one."""
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 10, "maxItems": 1000}
    with effort(150):
        text = written(schema)
        words = {n: "[" + ",".join(["true"] * n) + "]" for n in (0, 1, 9, 10, 11, 500, 1000, 1001)}
        accepted = judge.accepted(text, list(words.values()))
        assert accepted == [words[n] for n in (10, 11, 500, 1000)]
    assert len(text) < 200_000
