"""Mistakes that other engines made with JSON schemas, one after another, by their number.

Those of strings and numbers are in test_bugs_of_values.py, of recursion and size in
test_bugs_of_size.py, of grammars in test_bugs_of_grammars.py, of tools in test_bugs_of_tools.py.
"""

import json
from itertools import permutations, product
from typing import Any

import pytest

from deepinfer.structured.keywords import KEYWORDS
from tests.unit.structured.judge import (
    STOP,
    Judge,
    assert_sound,
    is_valid,
    mask,
    refused,
    written,
)
from tests.unit.structured.schema_cases import obj


def objects(**values: list[str]) -> list[str]:
    """JSON texts of objects: each choice of keys in each order, with each of their values."""
    found = []
    for size in range(len(values) + 1):
        for keys in permutations(values, size):
            for chosen in product(*(values[key] for key in keys)):
                pairs = (f'"{key}":{one}' for key, one in zip(keys, chosen, strict=True))
                found.append("{" + ",".join(pairs) + "}")
    return found


def keys_in_order(text: str) -> bool:
    pairs: list[str] = list(json.loads(text))
    return pairs == sorted(pairs)


@pytest.mark.parametrize("combinator", ["anyOf", "oneOf", "allOf"])
def test_d01_keywords_beside_a_combinator(judge: Judge, combinator: str) -> None:
    """D01: properties beside anyOf, oneOf or allOf are dropped, and any JSON passes."""
    base = obj([], a={"type": "integer"}, b={"type": "boolean"})
    schema = base | {combinator: [{"required": ["a"]}, {"required": ["b"]}]}
    assert_sound(judge, schema, 500)
    texts = objects(a=["1", "true", '"x"'], b=["true", "0"], c=["1"])
    texts += ["1", "null", "[]", '"a"', '{"a":1,"a":1}']
    accepted = judge.accepted(written(schema), texts)
    # Exactly what is valid and has its keys in the order of the schema.
    assert accepted == [one for one in texts if is_valid(schema, one) and keys_in_order(one)]


@pytest.mark.parametrize("required", [["a"], ["b"]])
def test_d01_combinators_beside_each_other(judge: Judge, required: list[str]) -> None:
    """D01: of two combinators beside each other only the first one counts."""
    number, short = {"type": "integer", "minimum": 3}, {"type": "string", "maxLength": 2}
    schema = obj(required, a={"anyOf": [number, short], "allOf": [{"not": {"const": "no"}}]}, b={})
    texts = objects(a=["2", "3", '"abc"', '"ab"', '"no"', "null"], b=["[]"])
    accepted = judge.accepted(written(schema), texts)
    assert accepted == [one for one in texts if is_valid(schema, one) and keys_in_order(one)]


@pytest.mark.parametrize(
    ("inner", "where", "word"),
    [
        ({"enum": []}, "/enum", "found []"),
        ({"type": "string", "enum": [1, 2]}, "", "no value"),
        ({"type": "integer", "const": "x"}, "", "no value"),
        ({"const": 1, "enum": [2, 3]}, "", "no value"),
        ({"enum": ["a", "b"], "not": {"enum": ["a", "b"]}}, "", "no value"),
        ({"enum": ["abc"], "maxLength": 2}, "", "no value"),
        (False, None, "no value"),
    ],
)
def test_d02_values_that_cannot_be(inner: Any, where: str | None, word: str) -> None:
    """D02: a required property that no value fits becomes a key without a value."""
    for schema, pointer in (
        (obj(key=inner), "/properties/key"),
        (obj(["key"], top={}, key=inner), "/properties/key"),
        (
            obj(deep={"type": "array", "minItems": 1, "items": obj(key=inner)}),
            "/properties/deep/items/properties/key",
        ),
    ):
        error = refused(schema)
        assert word in error.what
        if where is not None:
            assert error.field == f"so_args.schema#{pointer}{where}"


_INLINE: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"enum": ["red", 1, None]}, ["red", 1, None], ["blue", {}, [], 2, "1"]),
    ({"const": "x"}, ["x"], ["y", {}, {"x": 1}, 1]),
    ({"minimum": 3, "maximum": 12, "type": "integer"}, [3, 9, 12], [2, 13, {}, "3"]),
    ({"minimum": 3}, [3, 400, "text", {}, None], [2, -1]),
    ({"type": "string", "pattern": "^[a-f]+$"}, ["abc", "f"], ["", "xyz", {}, 1]),
    ({"pattern": "^[a-f]+$"}, ["abc", 1, {}, []], ["", "xyz"]),
    ({"maxLength": 2}, ["ab", 100], ["abc"]),
    ({"items": {"type": "integer"}}, [[1], [], "x"], [["a"], [1, None]]),
]


@pytest.mark.parametrize(("inner", "good", "bad"), _INLINE, ids=str)
def test_d04_behind_a_reference(judge: Judge, inner: Any, good: list[Any], bad: list[Any]) -> None:
    """D04: an enum, const, range or pattern behind a $ref becomes a free object."""
    ways = [
        obj(v=inner),
        obj(v={"$ref": "#/$defs/one"}) | {"$defs": {"one": inner}},
        obj(v={"$ref": "#/definitions/one"}) | {"definitions": {"one": inner}},
        obj(v={"$ref": "#name"}) | {"$defs": {"one": inner | {"$anchor": "name"}}},
        obj(v={"$ref": "#/$defs/a"}) | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": inner}},
        obj(v={"allOf": [{"$ref": "#/$defs/one"}]}) | {"$defs": {"one": inner}},
        obj(v={"$ref": "#/$defs/one", "type": ["string", "number", "null", "object", "array"]})
        | {"$defs": {"one": inner}},
    ]
    texts = [f'{{"v": {json.dumps(one)}}}' for one in good + bad]
    for schema in ways:
        assert judge.accepted(written(schema), texts) == texts[: len(good)], schema
        assert_sound(judge, schema, 20)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object"}, ["{}", '{"a":1}', '{"a":{"b":[]},"c":null}'], ["[]", "1", "{,}", ""]),
        ({"type": "array"}, ["[]", '[1,"a",[],{}]', "[[[]]]"], ["{}", "[,]", "[1,]", "null"]),
        ({}, ["{}", "[]", "1", '"x"', "null", "true", "-0.5", "[{}]"], ["", "nul", "tru", "01"]),
        (True, ["{}", "[]", "1", '"x"', "null", "false"], ["", "undefined"]),
        ({"type": ["string", "null"]}, ['"x"', "null", '""'], ["1", "{}", "true"]),
        ({"type": ["object", "null"]}, ["{}", '{"a":1}', "null"], ["1", "[]"]),
        ({"type": "object", "required": ["a"]}, ['{"a":1}', '{"a":[],"b":2}'], ["{}", '{"b":1}']),
        ({"required": ["a"]}, ['{"a":1}', "1", "[]"], ["{}", '{"b":1}']),
    ],
    ids=str,
)
def test_d09_bare_schemas(judge: Judge, schema: Any, good: list[str], bad: list[str]) -> None:
    """D09: a schema that only says "object" is an error, or allows nothing but {}."""
    for whitespace in ("bounded", "none"):
        text = written(json.dumps(schema), whitespace=whitespace)
        assert judge.accepted(text, good + bad) == good
    assert_sound(judge, schema, 50)


def test_d09_nothing_at_all() -> None:
    """D09: `false` compiles, and the model writes whatever it likes or nothing."""
    error = refused("false")
    assert error.field == "so_args.schema#"
    assert "`false`" in error.what


_OPEN = [
    obj([], True, a={"const": 1}, b={"const": 2}),
    obj([], {"type": "string"}, a={"const": 1}, b={"const": 2}),
    obj([], True, a={"const": 1}, abc={"const": 2}, b={"const": 3}),
    {"properties": {"a": {"const": 1}, "b": {"const": 2}}, "patternProperties": {"^a": {}}},
    obj([], True, a={"const": 1}, b={"const": 2}) | {"propertyNames": {"maxLength": 2}},
]


@pytest.mark.parametrize("schema", _OPEN, ids=str)
def test_d10_a_late_key_is_no_trap(judge: Judge, schema: Any) -> None:
    """D10: inside the name of a key that may not come any more, no quote can close it ever."""
    matcher = judge.matcher(written(schema))
    third = schema["properties"]["b"]["const"]
    assert matcher.accept_string(f'{{"b": {third}, "')
    for letter in "abcdefgh":
        before = mask(matcher)
        if not matcher.accept_string(letter):
            assert ord(letter) not in before
            break
        # A name was begun: whatever was written, it can be finished, and then be valid.
        _finish_object(judge, matcher.fork(), schema, "a")
    for late in ('"a":', '"a": 1}', '"\\u0061":', '"b":'):
        assert not judge.begins(written(schema), f'{{"b": {third}, {late}'), late


def _finish_object(judge: Judge, matcher: Any, schema: Any, letter: str) -> None:
    """Close the name within three more letters, without an escape, and then the object."""
    for _ in range(3):
        if ord('"') in mask(matcher):
            assert matcher.accept_string('":') or matcher.accept_string('": ')
            assert matcher.accept_string('"x"}') or matcher.accept_string("1}")
            assert mask(matcher) == {STOP}
            return
        assert matcher.accept_string(letter), f"no way on after a name, {schema}"
    raise AssertionError(f"the name cannot be closed, {schema}")


@pytest.mark.parametrize("extra", [False, None, True, {"type": "integer"}], ids=str)
def test_d11_order_of_optional_keys(judge: Judge, extra: Any) -> None:
    """D11: a late key passes as an extra one of another type, or comes twice."""
    schema = obj([], extra, a={"const": 1}, b={"const": "x"})
    texts = objects(a=["1", "2", '"x"'], b=['"x"', "1"], c=["7", '"y"'])
    twins = ['{"a":1,"a":1}', '{"a":1,"a":2}', '{"b":"x","b":"x"}', '{"a":1,"b":"x","a":1}']
    spelled = ['{"b":"x","\\u0061":1}', '{"\\u0061":1}', '{"\\u0061":2}', '{"b":"x","\\u0061":2}']
    accepted = judge.accepted(written(schema), texts + twins + spelled)
    has_extras = extra not in (False, None)
    # The rule: declared keys in the order of the schema, then any others.
    assert accepted == [
        one
        for one in texts
        if is_valid(schema, one) and keys_in_order(one) and (has_extras or '"c"' not in one)
    ]


_PATTERNS = {
    "type": "object",
    "properties": {"n_1": {"type": "integer"}, "other": {"const": "o"}},
    "patternProperties": {"^n_": {"maximum": 9}, "_s$": {"type": "string"}},
    "additionalProperties": False,
}


def test_d12_pattern_properties(judge: Judge) -> None:
    """D12: patternProperties are passed over, so that a key with two rules obeys just one."""
    values = ["5", "12", '"s"', "true"]
    keys = ["n_1", "other", "n_2", "x_s", "n_s", "zz", "an_1", "s"]
    texts = [f'{{"{key}":{one}}}' for key in keys for one in [*values, '"o"']]
    texts += [f'{{"n_1":{one},"n_2":{two}}}' for one in values for two in values] + ["{}"]
    assert judge.accepted(written(_PATTERNS), texts) == [t for t in texts if is_valid(_PATTERNS, t)]
    assert_sound(judge, _PATTERNS, 200)


_REFUSED = [name for name, (status, _) in KEYWORDS.items() if status == "refused"]


@pytest.mark.parametrize("keyword", [*_REFUSED, "uniqueItems", "minLenght"])
def test_d12_keywords_that_are_not_enforced(keyword: str) -> None:
    """D12: a keyword that is not enforced is accepted, and the output is broken."""
    values: list[Any] = [True, {"type": "integer"}, 2, "x", {"a": ["b"]}, {"a": {}}, [{}]]
    for value in values if keyword != "uniqueItems" else [True]:
        for inner, pointer in (
            (obj(a={keyword: value}), "/properties/a"),
            ({"type": "array", "items": {"type": "object", keyword: value}}, "/items"),
            ({"anyOf": [{"type": "null"}, {"allOf": [{keyword: value}]}]}, "/anyOf/1/allOf/0"),
            ({"$ref": "#/$defs/one", "$defs": {"one": {keyword: value}}}, "/$defs/one"),
        ):
            if keyword == "uniqueItems" and pointer == "/items":
                continue  # of objects, it means nothing
            error = refused(inner)
            assert error.field == f"so_args.schema#{pointer}/{keyword}"
            assert keyword in error.what
