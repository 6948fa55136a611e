"""The ASGI application: which path is answered by what.

Knows the table of routes. The documents at /docs and /openapi.json are FastAPI's; all else passes
the gate alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI

from deepinfer import __version__
from deepinfer.server.answers import completions, conversation, count_tokens
from deepinfer.server.gate import Gate, Route
from deepinfer.server.inquiries import (
    detokenize,
    health,
    home,
    live,
    metrics,
    models,
    one_model,
    ready,
    tokenize,
)
from deepinfer.server.openapi import openapi_document
from deepinfer.server.state import ServerState

ROUTES = (
    Route("POST", "/v1/chat/completions", conversation("chat"), "chat"),
    Route("POST", "/v1/completions", completions),
    Route("POST", "/v1/responses", conversation("responses"), "responses"),
    Route("POST", "/v1/messages", conversation("messages"), "messages"),
    Route("POST", "/v1/messages/count_tokens", count_tokens, "messages"),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/", one_model),
    Route("POST", "/v1/tokenize", tokenize),
    Route("POST", "/v1/detokenize", detokenize),
    Route("GET", "/health", health, is_open=True, is_quiet=True),
    Route("GET", "/ready", ready, is_open=True, is_quiet=True),
    Route("GET", "/metrics", metrics, is_quiet=True),
    Route("GET", "/live", live, is_quiet=True),
    Route("GET", "/", home, is_open=True),
)


def make_app(state: ServerState) -> Gate:
    """The application of a server."""
    documents = FastAPI(title="DeepInfer", version=__version__, redoc_url=None)
    found: dict[str, Any] = openapi_document(__version__)
    # Bodies are read by the recipe, so FastAPI has no models to make the document of.
    documents.openapi = lambda: found  # type: ignore[method-assign]
    return Gate(state, by_path(ROUTES), documents)


def by_path(routes: Iterable[Route]) -> Mapping[str, Mapping[str, Route]]:
    """path -> method -> route."""
    found: dict[str, dict[str, Route]] = {}
    for route in routes:
        found.setdefault(route.path, {})[route.method] = route
    return found
