"""Mistakes that other engines made with the parameters of tools, by their number."""

import json
import re
from itertools import combinations
from typing import Any

import pytest

from deepinfer.structured.control_chars import DSML
from tests.effort import effort
from tests.unit.structured.judge import Judge, is_valid, refused, tool, written
from tests.unit.structured.schema_cases import obj

_WORDS = {"type": "array", "items": {"type": "string"}}


def many_tools(number: int, parameters: Any) -> str:
    """30 tools, all ordinary but one."""
    ordinary = obj(
        ["path"],
        path={"type": "string", "minLength": 1, "maxLength": 300},
        mode={"enum": ["read", "write"]},
        lines={"type": "array", "items": {"type": "integer", "minimum": 1}, "maxItems": 20},
    )
    tools = [tool(f"tool_{n}", ordinary) for n in range(30)]
    tools[number] = tool(f"tool_{number}", parameters)
    return json.dumps(tools)


_NESTED = "/properties/deep/properties/key"


@pytest.mark.parametrize(
    ("inner", "keyword", "word"),
    [
        ({"type": "string", "pattern": "(unclosed"}, "/pattern", "character"),
        ({"type": "string", "pattern": "(?<=a)b"}, "/pattern", "look"),
        ({"type": "strnig"}, "/type", "strnig"),
        ({"type": ["string", "text"]}, "/type", "text"),
        ({"type": "string", "maxLength": "8"}, "/maxLength", 'found "8"'),
        ({"type": "array", "maxItems": 10**6, "minItems": 10**5}, "Items", "too many"),
        ({"type": "object", "unevaluatedProperties": False}, "/unevaluatedProperties", "enforced"),
        ({"$ref": "#/$defs/gone"}, "/$ref", "nowhere"),
        ({"enum": []}, "/enum", "found []"),
        ({"type": "string", "format": "postcode"}, "/format", "postcode"),
        ({"type": "string", "minLength": 9, "maxLength": 8}, "", "no value"),
        ({"type": "string", "minLenght": 9}, "/minLenght", "no keyword"),
    ],
    ids=str,
)
def test_d19_errors_name_tool_path_and_keyword(inner: Any, keyword: str, word: str) -> None:
    """D19: one bad keyword among 30 tools gives "failed to parse grammar" only."""
    parameters = obj(["deep"], text={"type": "string"}, deep=obj(key=inner))
    for number in (0, 7):
        error = refused(many_tools(number, parameters), "tool_calls")
        assert error.field.startswith(f"so_args.schema.tool_{number}.parameters#{_NESTED}")
        assert error.field.endswith(keyword)
        assert word in error.what
    error = refused(parameters)
    assert error.field.startswith(f"so_args.schema#{_NESTED}")
    assert error.field.endswith(keyword)


def test_d19_a_large_length_among_many_tools(judge: Judge) -> None:
    """D19: a maxLength of 65536 in one of 30 tools is too much for the grammar of all."""
    long = obj(["text"], text={"type": "string", "maxLength": 65536}, words=_WORDS)
    with effort(200):
        text = written(many_tools(13, long), "tool_calls")
        assert len(text) < 1_000_000
        matcher = judge.matcher(text)
    begun = f'\n\n<{DSML} calls>\n<{DSML} invoke name="tool_13">\n<{DSML} parameter name="text"'
    assert matcher.accept_string(f'{begun} string="true">')
    end = f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
    for letters in ("", "é" * 5000):
        assert matcher.accept_string(letters)
        assert matcher.fork().accept_string(end)


def test_d07_length_of_a_long_argument(judge: Judge) -> None:
    """D07: a length above that of any automaton is dropped, or cannot be written at all."""
    schema = obj(["text"], text={"type": "string", "minLength": 2, "maxLength": 2500})
    text = written(json.dumps([tool("f", schema)]), "open_tool_calls")
    begun = f'<{DSML} invoke name="f">\n<{DSML} parameter name="text" string="true">'
    end = f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
    words = [f"{begun}{'é' * count}{end}" for count in (0, 1, 2, 2499, 2500, 2501)]
    assert judge.accepted(text, words) == words[2:5]


@pytest.mark.parametrize(
    ("tools", "field", "word"),
    [
        ([], "", "no list of tools"),
        ([3], "", "no list of tools"),
        ([{"function": {}}], "", "no list of tools"),
        ({"name": "f"}, "", "no list of tools"),
        ([tool("", {})], "", "name"),
        ([tool('a"b', {})], "", 'a"b'),
        ([tool("f", {"type": "string"})], ".f.parameters#", "object"),
        ([tool("f", {"type": "object", "minProperties": 1})], ".f.parameters#", "no value"),
        ([tool("f", obj([], a={}) | {"minProperties": 2})], ".f.parameters#", "no value"),
    ],
    ids=str,
)
def test_d19_tools_without_sense(tools: Any, field: str, word: str) -> None:
    """D19: a list of tools that is none ends in an error of the program, not in one that helps."""
    error = refused(json.dumps(tools), "tool_calls")
    assert error.field == f"so_args.schema{field}"
    assert word in error.what


@pytest.mark.parametrize(
    "limits", [{"minProperties": 2}, {"maxProperties": 1}, {"maxProperties": 0}, {}], ids=str
)
@pytest.mark.parametrize("required", [[], ["b"]])
def test_d01_number_of_arguments(judge: Judge, limits: Any, required: list[str]) -> None:
    """D01: minProperties and maxProperties of a tool's parameters are dropped."""
    schema = obj(required, a={"const": 1}, b={"const": 2}, c={"const": 3}) | limits
    if required and limits == {"maxProperties": 0}:
        return
    text = written(json.dumps([tool("f", schema)]), "open_tool_calls")
    for size in range(4):
        for keys in combinations("abc", size):
            lines = "\n".join(_line(key, "abc".index(key) + 1) for key in keys)
            call = f'<{DSML} invoke name="f">\n{lines}\n</{DSML} invoke>\n</{DSML} calls>'
            arguments = {key: "abc".index(key) + 1 for key in keys}
            assert judge.accepts(text, call) == is_valid(schema, json.dumps(arguments))


def _line(key: str, value: int) -> str:
    return f'<{DSML} parameter name="{key}" string="false">{value}</{DSML} parameter>'


def test_d19_what_is_too_large_is_named() -> None:
    """D19: a schema is too large as a whole, and the error does not say where."""
    lists = [{"type": "array", "maxItems": 3000, "items": {"const": n}} for n in range(5)]
    lists[3]["maxItems"] = 4096
    wide = {f"list{n}": obj([], values=one) for n, one in enumerate([*lists, *lists])}
    error = refused(json.dumps([tool("wide", obj([], n={}, **wide))]), "tool_calls")
    pointer = "/properties/list3/properties/values"
    assert error.field == f"so_args.schema.wide.parameters#{pointer}"
    assert "rules" in error.what
    assert "maxItems" in error.hint


@pytest.mark.slow
def test_d19_limits_of_all_tools_together() -> None:
    """D19: limits add up over the tools, and the error names none of them."""
    wide = {"type": "array", "items": {"type": "string", "maxLength": 65536}, "maxItems": 4096}
    tools = json.dumps([tool(f"tool_{n}", obj(a=wide, b=wide)) for n in range(30)])
    error = refused(tools, "tool_calls")
    assert re.fullmatch(r"so_args.schema.tool_\d.parameters", error.field)
    assert "rules" in error.what
    assert "maxItems" in error.hint
