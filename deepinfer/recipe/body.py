"""The body of a request, from text to fields of known types.

Knows where the descriptions of the three protocols are. Does not know what fields mean.
"""

import json
from collections.abc import Mapping
from typing import Any

from deepinfer.recipe.errors import BodyError
from deepinfer.recipe.fields import Reader, Unreadable
from deepinfer.recipe.json_text import read_json
from deepinfer.recipe.request import Protocol
from deepinfer.recipe.shape_chat import CHAT
from deepinfer.recipe.shape_messages import MESSAGES
from deepinfer.recipe.shape_responses import RESPONSES
from deepinfer.recipe.syntax_fault import syntax_fault

_SHAPES: Mapping[Protocol, Reader] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "messages": MESSAGES,
}


def read_body(protocol: Protocol, body: bytes | str | dict[str, Any]) -> dict[str, Any]:
    """The request's fields, all that the protocol has; those that are absent are None.

    body: JSON text, or the object itself. Raises BodyError, with the field's path, for anything
    that is not a request of the protocol (spec recipe 9), an object that is not made of JSON values
    among them.
    """
    value = _value(body)
    try:
        fields: dict[str, Any] = _SHAPES[protocol](value)
    except Unreadable as error:
        raise BodyError(
            f"invalid request body: {error.text}", field=_path(error.path) or "body"
        ) from None
    return fields


def _value(body: bytes | str | dict[str, Any]) -> Any:
    """The JSON value of a body."""
    if not isinstance(body, bytes | str):
        try:
            # Through text: numbers then are what they would have been, had they come as text.
            body = json.dumps(body, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(f"invalid JSON request: {error}") from None
    try:
        return read_json(body.decode() if isinstance(body, bytes) else body)
    except ValueError:
        data = body if isinstance(body, bytes) else body.encode(errors="surrogatepass")
        raise BodyError(f"invalid JSON request: {syntax_fault(data)}") from None


def _path(steps: list[str | int]) -> str:
    """Names and indexes as one path: messages[0].content."""
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps).removeprefix(".")
