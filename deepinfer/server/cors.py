"""Which pages of other origins may call the API from a browser. By default none may.

Knows headers. Does not know routes.
"""

from collections.abc import Sequence

from deepinfer.server.exchange import Exchange

_HEADERS = "authorization, content-type, x-api-key, x-request-id, anthropic-version"


def is_preflight(exchange: Exchange) -> bool:
    """A browser asks whether it may."""
    return exchange.method == "OPTIONS" and "access-control-request-method" in exchange.headers


def cors_headers(exchange: Exchange, allowed: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """What is told to the origin of a request; nothing to one that is not allowed."""
    origin = exchange.headers.get("origin")
    if origin is None or not ("*" in allowed or origin in allowed):
        return []
    headers = {
        "access-control-allow-origin": "*" if "*" in allowed else origin,
        "access-control-expose-headers": "x-request-id, retry-after",
        "vary": "origin",
    }
    if is_preflight(exchange):
        headers["access-control-allow-methods"] = "GET, POST"
        # Browsers list what they mean to send, with the clients' own headers among it.
        asked = exchange.headers.get("access-control-request-headers", _HEADERS)
        headers["access-control-allow-headers"] = asked
        headers["access-control-max-age"] = "600"
    return [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
