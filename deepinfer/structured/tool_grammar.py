"""Tools -> the grammar of a block of calls, as V4.1 writes it (spec recipe 4.2 and 4.7).

Knows the markup of calls and the schemas of tools. Does not know conversations.
"""

import json
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.structured import automaton, charset
from deepinfer.structured.control_chars import DSML, plain, plain_chars
from deepinfer.structured.document import SchemaSet
from deepinfer.structured.grammar import Alt, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_check import MAX_RULES
from deepinfer.structured.grammar_write import dfa_rules
from deepinfer.structured.json_string import MAX_LENGTH
from deepinfer.structured.layout import ObjectLayout
from deepinfer.structured.prune import pruned
from deepinfer.structured.schema import Known, known_shapes, rules_of, uncountable
from deepinfer.structured.shapes import Strings
from deepinfer.structured.write_json import JsonRules, shape_rule

_BLOCK, _BLOCK_END = f"<{DSML} calls>\n", f"</{DSML} calls>"
_CALL_END = f"\n</{DSML} invoke>\n"
_VALUE_END = f"</{DSML} parameter>"


def tool_grammar(tools_json: str, field: str, *, is_open: bool) -> Grammar:
    """One or more calls of the tools, with arguments that obey their schemas.

    tools_json: a JSON array of {"type": "function", "function": {"name", "parameters"}}. is_open:
    the prompt has begun the block already.
    Raises RequestError naming the tool, and the place in its schema.
    """
    rules: dict[str, Expr] = {}
    calls: list[Expr] = []
    for number, tool in enumerate(_tools(tools_json, field)):
        name, schema = tool["name"], _parameters(tool)
        known = known_shapes(schema, f"{field}.{name}.parameters")
        start = f"t{number}"
        own = pruned(Grammar(_argument_rules(start, known), start))
        if own is None:
            raise uncountable(known)
        rules |= own.rules
        if len(rules) > MAX_RULES:
            what = f"with this tool, the grammar has more than {MAX_RULES} rules"
            hint = "use smaller maxItems, minItems and maxLength, or fewer tools"
            raise RequestError(what, field=f"{field}.{name}.parameters", hint=hint)
        calls.append(Seq((Text(f'<{DSML} invoke name="{name}">\n'), Ref(start))))
    rules["call"] = Alt(tuple(calls))
    rules["more"] = Alt((Text(_BLOCK_END), Seq((Ref("call"), Ref("more")))))
    opening = () if is_open else (Text(f"\n\n{_BLOCK}"),)
    rules["root"] = Seq((*opening, Ref("call"), Ref("more")))
    return Grammar(rules, "root")


def _tools(tools_json: str, field: str) -> list[dict[str, Any]]:
    try:
        tools = [tool["function"] for tool in json.loads(tools_json)]
        names = [tool["name"] for tool in tools]
    except (ValueError, TypeError, KeyError, RecursionError):
        tools = names = []
    if not tools or not all(isinstance(tool, dict) for tool in tools):
        hint = 'give a JSON array of {"type": "function", "function": {"name": ..., ...}}'
        raise RequestError("found no list of tools", field=field, hint=hint)
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or not name or _is_markup(name):
            what, hint = f"{name!r} is no name of a tool", "use letters, digits, _ and -"
            raise RequestError(what, field=field, hint=hint)
    return tools


def _parameters(tool: dict[str, Any]) -> Any:
    given = tool.get("parameters")
    return {"type": "object"} if given is None or given == {} else given


def _argument_rules(start: str, known: Known) -> dict[str, Expr]:
    """The rule `start`: what a call says after its name; and the rules that it needs."""
    found = rules_of(known, "bounded", f"{start}_")
    layouts = [one for one in known.values[known.root] if isinstance(one, ObjectLayout)]
    if not layouts:
        hint = 'write {"type": "object", "properties": {...}}'
        raise known.document.error("", "the arguments of a tool are an object", hint)
    arguments = [_arguments(f"{start}_a{n}", one, known, found) for n, one in enumerate(layouts)]
    json_part = plain(Grammar(found.rules, start)).rules
    rules = {name: rule for one in arguments for name, rule in one.items()}
    return json_part | rules | {start: Alt(tuple(Ref(next(iter(one))) for one in arguments))}


def _arguments(name: str, layout: ObjectLayout, known: Known, found: JsonRules) -> dict[str, Expr]:
    """The fields of one layout in their order, a line each; the first rule is where it starts.

    A key that no schema names has no line, and a call without arguments has one empty line.
    """
    rules: dict[str, Expr] = {}
    low = 0 if layout.low <= layout.num_required else layout.low
    # Lines are counted as far as it matters.
    most = max(low, 1) if layout.high is None else layout.high
    for place, field in enumerate(layout.fields):
        value = f"{name}_v{place}"
        rules |= _value(value, field.values, known, found)
        for count in range(most + 1):
            line = (*((Text("\n"),) if count else ()), _head(field.key), Ref(value))
            ways: list[Expr] = []
            if layout.high is None or count < most:
                ways.append(Seq((*line, Ref(f"{name}_{place + 1}_{min(count + 1, most)}"))))
            if not field.is_required:
                ways.append(Ref(f"{name}_{place + 1}_{count}"))
            rules[f"{name}_{place}_{count}"] = Alt(tuple(ways))
    for count in range(most + 1):
        end = Text(_CALL_END) if count >= low else Alt(())
        rules[f"{name}_{len(layout.fields)}_{count}"] = end
    first = f"{name}_0_0"
    return {first: rules[first]} | rules


def _head(key: str) -> Text:
    if _is_markup(key):
        raise RequestError(
            f"the argument {key!r} cannot be written in a call",
            field="tools",
            hint="use letters, digits, _ and - in the names of arguments",
        )
    return Text(f'<{DSML} parameter name="{key}" string="')


def _is_markup(name: str) -> bool:
    # Markup has no escapes: whoever reads it takes a name up to the quote, a key up to the space.
    return any(character in name for character in ' "<>\n')


def _value(name: str, schemas: SchemaSet, known: Known, found: JsonRules) -> dict[str, Expr]:
    """The rule `name`: a value up to its closing tag, strings as they are, all else in JSON."""
    rules: dict[str, Expr] = {}
    ways: list[Expr] = []
    for number, shape in enumerate(known.values[schemas]):
        if isinstance(shape, Strings):
            own = f"{name}_s{number}_"
            rules |= _text_rules(own, shape)
            ways.append(Seq((Text('true">'), Ref(f"{own}0"))))
        else:
            value = shape_rule(f"{name}_{number}", shape, found)
            ways.append(Seq((Text('false">'), value, Text(_VALUE_END))))
    return rules | {name: Alt(tuple(ways))}


def _text_rules(start: str, strings: Strings) -> dict[str, Expr]:
    """The rule `start`0: a string as it is, and its closing tag."""
    if not automaton.is_any(strings.dfa):
        return dfa_rules(start, strings.dfa, plain_chars, Text(_VALUE_END))
    # Counted by the compiler: as an automaton, each length would be a rule.
    high = None if strings.high is None else min(strings.high, MAX_LENGTH)
    text = Repeat(plain_chars(charset.ALL), strings.low, high)
    return {f"{start}0": Seq((text, Text(_VALUE_END)))}
