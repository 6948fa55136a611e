"""`SoArgs`: what the `so_args` of a request ask for: output that obeys a schema or a grammar.

Knows the fields and their kinds. Whether a schema can be enforced is deepinfer.structured's.
"""

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from deepinfer.errors import RequestError

SchemaType = Literal["json", "json_object", "regex", "ebnf", "tool_calls", "open_tool_calls"]
Whitespace = Literal["bounded", "none"]
_KEYS = ("schema_type", "schema", "trigger_token_ids", "bound_token_id", "whitespace")


@dataclass(frozen=True)
class SoArgs:
    """Structured output, as DeepInfer 0.1 takes it.

    schema_type: "json", "json_object", "regex", "ebnf", "tool_calls", or "open_tool_calls", for a
        prompt that has begun the block of calls already.
    schema: a JSON schema as text; a regular expression that the whole output must match; a grammar
        whose rule `root` it must match; a JSON array of tools, of which one or more are called.
        Empty for "json_object", and for "json", which then means the same.
    trigger_token_ids: the output is free until exactly these tokens were generated in a row, such
        as the end of the thoughts; it must obey from the next token on.
    bound_token_id: when this token is generated before the trigger is complete, the tokens of the
        trigger are forced, and the free part is over.
    whitespace: of JSON: "bounded" lets the model break lines, "none" allows none.
    """

    schema_type: SchemaType
    schema: str
    trigger_token_ids: tuple[int, ...] = ()
    bound_token_id: int | None = None
    whitespace: Whitespace = "bounded"


def read_so_args(given: Any) -> SoArgs | None:
    """What a request's `so_args` say; None for None.

    A JSON schema may also be given as its value. Raises RequestError naming the field.
    """
    if given is None or isinstance(given, SoArgs):
        return given
    if not isinstance(given, Mapping):
        raise _refused("so_args", given, f"a mapping with {', '.join(_KEYS)}")
    for key in given:
        if key not in _KEYS:
            raise _refused(f"so_args.{key}", given[key], f"only {', '.join(_KEYS)}")
    kind: Any = given.get("schema_type")
    if not isinstance(kind, str) or kind not in get_args(SchemaType):
        raise _refused("so_args.schema_type", kind, f"one of {', '.join(get_args(SchemaType))}")
    whitespace = given.get("whitespace", "bounded")
    if whitespace not in get_args(Whitespace):
        raise _refused("so_args.whitespace", whitespace, f"one of {get_args(Whitespace)}")
    trigger = _trigger(given.get("trigger_token_ids"))
    bound = given.get("bound_token_id")
    if bound is not None:
        if not _is_token(bound):
            raise _refused("so_args.bound_token_id", bound, "a token id")
        if not trigger:
            raise _refused("so_args.bound_token_id", bound, "trigger_token_ids beside it")
    return SoArgs(
        schema_type=cast(SchemaType, kind),
        schema=_schema(kind, given),
        trigger_token_ids=trigger,
        bound_token_id=None if bound is None else int(bound),
        whitespace=cast(Whitespace, whitespace),
    )


def _schema(kind: str, given: Mapping[str, Any]) -> str:
    if kind == "json_object":
        if given.get("schema"):
            raise _refused("so_args.schema", given["schema"], 'none beside "json_object"')
        return ""
    if "schema" not in given:
        raise RequestError("it is missing", field="so_args.schema", hint="say what to obey")
    schema = given["schema"]
    if kind == "json" and isinstance(schema, Mapping | bool):
        try:
            return json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            hint = "give what JSON can say"
            raise RequestError(f"not JSON: {error}", field="so_args.schema", hint=hint) from None
    if not isinstance(schema, str):
        raise _refused("so_args.schema", schema, "text")
    if not schema and kind == "ebnf":
        raise _refused("so_args.schema", schema, "a grammar with a rule root")
    return schema


def _trigger(given: Any) -> tuple[int, ...]:
    if given is None:
        return ()
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not is_list or not all(_is_token(one) for one in given):
        raise _refused("so_args.trigger_token_ids", given, "a list of token ids")
    return tuple(int(one) for one in given)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refused(field: str, value: object, expected: str) -> RequestError:
    return RequestError(f"found {reprlib.repr(value)}", field=field, hint=f"expected {expected}")
