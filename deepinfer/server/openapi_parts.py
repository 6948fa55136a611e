"""Schemas that the bodies of several APIs share, for the document at /openapi.json. Only data."""

from typing import Any

Schema = dict[str, Any]


def text(note: str = "") -> Schema:
    """A string."""
    return _noted({"type": "string"}, note)


def number(low: float, high: float, note: str = "") -> Schema:
    """A number between two bounds, both included."""
    return _noted({"type": "number", "minimum": low, "maximum": high}, note)


def whole(low: int, high: int, note: str = "") -> Schema:
    """A whole number between two bounds, both included."""
    return _noted({"type": "integer", "minimum": low, "maximum": high}, note)


def flag(note: str = "") -> Schema:
    """true or false."""
    return _noted({"type": "boolean"}, note)


def words(names: str, note: str = "") -> Schema:
    """One of the words, which stand with spaces between."""
    return _noted({"type": "string", "enum": names.split()}, note)


def listed(items: Schema, note: str = "", **bounds: int) -> Schema:
    """An array."""
    return _noted({"type": "array", "items": items, **bounds}, note)


def either(*ways: Schema, note: str = "") -> Schema:
    """One of several."""
    return _noted({"anyOf": list(ways)}, note)


def only(value: Any, note: str = "") -> Schema:
    """One value."""
    return _noted({"const": value}, note)


def record(needed: str, fields: dict[str, Schema], note: str = "") -> Schema:
    """An object. needed: fields that must be there, with spaces between."""
    found: Schema = {"type": "object", "properties": fields}
    if needed:
        found["required"] = needed.split()
    return _noted(found, note)


def _noted(schema: Schema, note: str) -> Schema:
    return {**schema, "description": note} if note else schema


MOST = 2**31 - 1
SCHEMA: Schema = {"type": "object", "description": "A JSON schema."}
MODEL = text("A name that GET /v1/models lists. Without one the served model answers.")
STREAM = flag("Send the answer as server-sent events while it grows.")
MAX_TOKENS = whole(1, 393_216, "Most tokens of the answer, thoughts included.")
TOP_LOGPROBS = whole(0, 20, "Likeliest tokens to show for each token.")
EFFORT = words("none minimal low medium high xhigh ultra max", "How much to think; none: not.")
STREAM_OPTIONS = record(
    "", {"include_usage": flag("One more chunk at the end has the usage.")}, "Only with stream."
)
THINKING = record(
    "type",
    {
        "type": words("enabled adaptive disabled"),
        "budget_tokens": whole(0, MOST, "Most tokens of thoughts."),
    },
    "Thoughts before the answer; on by default.",
)

PENALTIES: dict[str, Schema] = {
    "frequency_penalty": number(-2, 2, "Taken from a token's logit for each time it was said."),
    "presence_penalty": number(-2, 2, "Taken from a token's logit once it was said."),
}
TEMPERATURE = number(0, 2, "0 takes the likeliest token; default 1.")
TOP_P = {
    "type": "number",
    "exclusiveMinimum": 0,
    "maximum": 1,
    "description": "Only the likeliest tokens that reach this probability; default 1.",
}
SEED = whole(-(2**63), 2**63 - 1, "The same seed gives the same tokens.")
LOGIT_BIAS: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,4}$"},
    "additionalProperties": number(-100, 100),
    "description": "Token id -> what is added to its logit.",
}
STOP = either(
    {"type": "string", "minLength": 1},
    listed({"type": "string", "minLength": 1}, maxItems=16),
    note="The answer ends before any of these.",
)
EXTRAS: dict[str, Schema] = {
    "top_k": whole(-1, MOST, "Only the k likeliest tokens; -1 is all."),
    "min_p": number(0, 1, "Only tokens at least so many times as probable as the likeliest."),
    "repetition_penalty": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 100,
        "description": "Divides the logits of tokens of prompt and answer; 1 is off.",
    },
    "min_tokens": whole(0, MOST, "No end before so many tokens."),
    "ignore_eos": flag("Go on after the end token."),
    "stop_token_ids": listed(whole(0, MOST), "Tokens that end the answer."),
    "cache_salt": text("Prefixes are shared only between requests with the same one."),
}
THINKING_BUDGET = whole(0, MOST, "Most tokens of thoughts; then the answer must begin.")
FUNCTION = {
    "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"},
    "description": text(),
    "parameters": {**SCHEMA, "description": "The arguments: a JSON schema of type object."},
    "strict": flag("Hold the arguments to the schema."),
}
LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
