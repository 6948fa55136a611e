"""Valid answers are allowed: the grammar of a schema is not narrower than we say.

We say: keys in the order of the schema, none that are not declared where some are and nothing is
said of the others, numbers in canonical form and of at most 16 digits. `oneOf`, `not` and `if` are
told apart by required keys, and the cases NARROW lose more by that.
"""

import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.unit.structured.judge import Judge, written
from tests.unit.structured.schema_cases import ACCEPTED

_KINDS = ("objects", "references", "anyOf", "allOf", "oneOf", "not and if", "nested", "arrays")
_STRINGS = ["", "a", "b", "ab", "xa", "az", "Bob", "Anna", "long one", 'say "hi"\n', "é😀", "z" * 9]
_STRINGS += ["x"]
_FORMATS = {"email": "a@b.org", "date-time": "2024-02-29T12:00:00Z"}
NARROW = {"oneOf 2"}
_SCALARS = [None, True, False, *range(-3, 13), 1000, -77, 0.5, 2.25, *_STRINGS]
CASES = [
    pytest.param(schema, id=f"{kind} {number}")
    for kind in _KINDS
    for number, schema in enumerate(ACCEPTED[kind])
    if f"{kind} {number}" not in NARROW and len(json.dumps(schema)) < 1000
] + [
    pytest.param(schema, id=f"{kind} {number}")
    for kind in ("enum and const", "numbers", "bare")
    for number, schema in enumerate(ACCEPTED[kind])
    if "10000000" not in json.dumps(schema) and len(json.dumps(schema)) < 1000
]


class Guesses:
    """Values that a schema may allow: guided by it, but not by what we make of it."""

    def __init__(self, schema: Any, seed: int) -> None:
        self._root, self._dice = schema, random.Random(seed)

    def value(self, parts: list[Any], depth: int = 3) -> Any:
        """A value that some of the schemas speak of."""
        said = [one for part in parts for one in self._flat(part, 6)]
        fixed = [v for one in said for v in [*one.get("enum", ()), *self._const(one)]]
        if fixed and self._dice.random() < 0.9:
            return self._dice.choice(fixed)
        kinds = {k for one in said for k in self._types(one)} or {"any", "object", "array"}
        kind = self._dice.choice(sorted(kinds))
        if kind == "object":
            return self._object(said, depth)
        if kind == "array":
            return self._array(said, depth)
        return self._scalar(kind, said)

    def _flat(self, schema: Any, depth: int) -> list[dict[str, Any]]:
        """The schema, and what it refers to, one of its alternatives each time."""
        if not isinstance(schema, dict) or not depth:
            return []
        more = list(schema.get("allOf", ()))
        more += [self._dice.choice(schema[k]) for k in ("anyOf", "oneOf") if schema.get(k)]
        more += [schema[k] for k in ("then", "else", "if") if k in schema]
        more += schema.get("dependentSchemas", {}).values()
        more += [self._target(schema["$ref"])] if "$ref" in schema else []
        return [schema, *(one for part in more for one in self._flat(part, depth - 1))]

    def _target(self, reference: str) -> Any:
        found = self._root
        for token in reference.removeprefix("#").split("/")[1:]:
            found = found[token.replace("~1", "/").replace("~0", "~")]
        if reference.startswith("#") and not reference.startswith("#/") and reference != "#":
            return next(one for one in found["$defs"].values() if "$anchor" in one)
        return found

    @staticmethod
    def _const(said: dict[str, Any]) -> list[Any]:
        return [said["const"]] if "const" in said else []

    @staticmethod
    def _types(said: dict[str, Any]) -> list[str]:
        types = said.get("type", ())
        hints = {"properties": "object", "required": "object", "items": "array"}
        hinted = [kind for key, kind in hints.items() if key in said and not types]
        return hinted + ([types] if isinstance(types, str) else list(types))

    def _scalar(self, kind: str, said: list[dict[str, Any]]) -> Any:
        bounds = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
        near = [
            int(one[k]) + step for one in said for k in bounds if k in one for step in (-1, 0, 1)
        ]
        if kind == "boolean":
            return self._dice.choice([True, False])
        formats = [_FORMATS[one["format"]] for one in said if one.get("format") in _FORMATS]
        if formats:
            return self._dice.choice(formats)
        if kind == "null":
            return None
        if kind in ("integer", "number"):
            return self._dice.choice([*near, *range(-3, 13), *([0.5, -2.25] * (kind == "number"))])
        return self._dice.choice(_STRINGS if kind == "string" else [None, *_SCALARS])

    def _object(self, said: list[dict[str, Any]], depth: int) -> dict[str, Any]:
        keys = [
            key for one in said for key in (*one.get("properties", ()), *one.get("required", ()))
        ]
        is_open = not keys and not any("patternProperties" in one for one in said)
        rests = [one["additionalProperties"] for one in said if "additionalProperties" in one]
        if is_open or (rests and False not in rests):
            keys += self._dice.sample(["zz", "y", "n_4"], self._dice.randint(0, 2))
        found = {}
        for key in dict.fromkeys(keys):
            needed = any(key in one.get("required", ()) for one in said)
            if depth and self._dice.random() < (0.97 if needed else 0.5):
                named = [one["properties"][key] for one in said if key in one.get("properties", ())]
                found[key] = self.value(named or rests, depth - 1)
        return found

    def _array(self, said: list[dict[str, Any]], depth: int) -> list[Any]:
        lows = [one[k] for one in said for k in ("minItems", "maxItems") if one.get(k, 99) < 20]
        prefix = next((one["prefixItems"] for one in said if "prefixItems" in one), [])
        rest = [one["items"] for one in said if "items" in one]
        most = len(prefix) if prefix and not rest and not lows else 3
        size = self._dice.choice([*lows, *range(most + 1)]) if depth else 0
        return [
            self.value([prefix[place]] if place < len(prefix) else rest, depth - 1)
            for place in range(size)
        ]


def order_of_keys(schema: Any) -> dict[str, int]:
    """The keys of the whole schema in the order in which they are first named."""
    found: dict[str, int] = {}
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            for names in (part.get("properties"), part.get("required")):
                for name in names if isinstance(names, dict | list) else ():
                    found.setdefault(str(name), len(found))
            todo += reversed(part.values())
        elif isinstance(part, list):
            todo += reversed(part)
    return found


def canonical(value: Any, order: dict[str, int]) -> Any:
    """The value with its keys in order, those without a place last, and 1 for 1.0."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: order.get(key, len(order)))
        return {key: canonical(value[key], order) for key in keys}
    if isinstance(value, list):
        return [canonical(item, order) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.parametrize("schema", CASES)
def test_valid_values_are_allowed(judge: Judge, schema: Any) -> None:
    """A model knows the right answer, and may not write it."""
    guesses, order = Guesses(schema, 5), order_of_keys(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    values = [canonical(guesses.value([schema]), order) for _ in range(150)]
    texts = [json.dumps(one, ensure_ascii=False) for one in values if validator.is_valid(one)]
    texts += [json.dumps(json.loads(one)) for one in texts[:5] if "\\u" not in json.dumps(one)]
    assert texts
    assert judge.accepted(written(schema), texts) == texts
