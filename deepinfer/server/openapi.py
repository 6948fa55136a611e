"""The document at /openapi.json: every route, with what it takes and what it answers.

Written by hand, because bodies are read by the recipe and not by FastAPI's models. Knows routes and
shapes. Does not know how anything is done.
"""

from typing import Any

from deepinfer.server.openapi_chat import CHAT, COMPLETIONS
from deepinfer.server.openapi_messages import MESSAGES, RESPONSES
from deepinfer.server.openapi_parts import MODEL, MOST, Schema, flag, listed, record, text, whole

_OBJECT: Schema = {"type": "object"}
_TOKENIZE = record(
    "",
    {
        "model": MODEL,
        "prompt": text("Or messages, and tools if there are any, as in Chat Completions."),
        "messages": CHAT["properties"]["messages"],
        "tools": CHAT["properties"]["tools"],
        "add_special_tokens": flag("Begin as a prompt of Completions does."),
    },
)
_DETOKENIZE = record("tokens", {"model": MODEL, "tokens": listed(whole(0, MOST))})
_TOKENS = record(
    "tokens count max_model_len",
    {"tokens": listed(whole(0, MOST)), "count": whole(0, MOST), "max_model_len": whole(1, MOST)},
)
_ERROR = record("error", {"error": record("type message", {"type": text(), "message": text()})})
_ERRORS = {
    "400": "The request is wrong; the message says where.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "Too many requests wait; Retry-After says when to come again.",
    "500": "The server has a fault.",
    "503": "The engine is not ready, or was lost; Retry-After says when to come again.",
}


def openapi_document(version: str) -> dict[str, Any]:
    """The document."""
    generating = {
        "/v1/chat/completions": ("Chat Completions", CHAT, True),
        "/v1/completions": ("Completions", COMPLETIONS, True),
        "/v1/responses": ("Responses", RESPONSES, True),
        "/v1/messages": ("Messages", MESSAGES, True),
        "/v1/messages/count_tokens": ("Tokens of a request of Messages", MESSAGES, False),
        "/v1/tokenize": ("Token ids of a text", _TOKENIZE, False),
        "/v1/detokenize": ("The text of token ids", _DETOKENIZE, False),
    }
    posts = {path: {"post": _post(*what)} for path, what in generating.items()}
    posts["/v1/tokenize"]["post"]["responses"]["200"] = _answer("The ids.", _TOKENS)
    gets = {
        "/v1/models": {"get": _get("The served model, once for each of its names", "v1")},
        "/v1/models/{name}": {
            "get": _get("One model", "v1"),
            "parameters": [{"name": "name", "in": "path", "required": True, "schema": text()}],
        },
        "/health": {"get": _get("The HTTP process is alive", "")},
        "/ready": {"get": _get("Requests can be taken", "")},
        "/live": {"get": _get("How the engine stands", "v1")},
        "/metrics": {"get": _get("Counts for Prometheus", "v1", kind="text/plain")},
        "/": {"get": _get("A page to talk to the model", "", kind="text/html")},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "DeepInfer", "version": version},
        "paths": {**posts, **gets},
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _post(summary: str, body: Schema, streams: bool) -> dict[str, Any]:
    # A field that is not known is refused.
    body = {**body, "additionalProperties": False}
    answer = _answer("The answer.", _OBJECT)
    if streams:
        answer["content"]["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": summary,
        "security": [{}, {"bearer": []}, {"key": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": answer, **_errors(*_ERRORS)},
    }


def _get(summary: str, group: str, kind: str = "application/json") -> dict[str, Any]:
    schema = _OBJECT if kind == "application/json" else {"type": "string"}
    statuses = ("401", "404", "503") if group else ("503",)
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "The answer.", "content": {kind: {"schema": schema}}},
            **_errors(*statuses),
        },
    }
    if group:
        found["security"] = [{}, {"bearer": []}, {"key": []}]
    return found


def _answer(note: str, schema: Schema) -> dict[str, Any]:
    return {"description": note, "content": {"application/json": {"schema": schema}}}


def _errors(*statuses: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {status: _answer(_ERRORS[status], schema) for status in statuses}
