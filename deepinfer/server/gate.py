"""What every request passes: an id, a key, a route, and at the end a line in the log.

Knows HTTP and errors. Does not know what routes do. It is one plain ASGI application around all
others, so that nothing stands between a route and the connection.
"""

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from deepinfer.recipe.request import Protocol
from deepinfer.server.cors import cors_headers, is_preflight
from deepinfer.server.engine_calls import SERVER_ENDS, as_api_error
from deepinfer.server.errors import CLIENT_LEFT, ApiError, error_object
from deepinfer.server.exchange import ClientLeft, Exchange, Receive, Scope, Send
from deepinfer.server.state import ServerState

_LOG = logging.getLogger("deepinfer.server")
_DOCUMENTS = ("/docs", "/docs/oauth2-redirect", "/openapi.json")

Handler = Callable[[ServerState, Exchange], Awaitable[None]]


@dataclass(frozen=True)
class Route:
    """A path and what answers it. protocol: in whose words errors are told. is_open: no key is
    asked for. is_quiet: no line in the log, for what is asked every second."""

    method: str
    path: str
    handler: Handler
    protocol: Protocol | None = None
    is_open: bool = False
    is_quiet: bool = False


class Gate:
    """routes: by path, "/v1/models/" for all that begins so. documents: the application for those
    paths that are none of them."""

    def __init__(
        self,
        state: ServerState,
        routes: Mapping[str, Mapping[str, Route]],
        documents: Callable[[Scope, Receive, Send], Awaitable[None]],
    ) -> None:
        self._state, self._routes, self._documents = state, routes, documents
        self._keys = [key.encode() for key in state.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return await self._other(scope, receive, send)
        exchange = Exchange(scope, receive, send)
        by_method = self._find(exchange.path)
        if by_method is None and exchange.path in _DOCUMENTS:
            return await self._documents(scope, receive, send)
        state = self._state
        state.stats.in_flight += 1
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = None if by_method is None else by_method.get(method)
        try:
            await self._answer(exchange, by_method, route)
        except ClientLeft:
            exchange.client_left = True
        except asyncio.CancelledError:
            # Either the connection ended, and we asked for it ourselves, or the server ends now.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if not exchange.client_left:
                await self._fail(exchange, SERVER_ENDS)
        except Exception as error:  # noqa: BLE001  (a fault in one request costs nobody else)
            await self._fail(exchange, error)
        finally:
            state.stats.in_flight -= 1
            self._close(exchange, is_quiet=bool(route and route.is_quiet))
        return None

    async def _answer(
        self, exchange: Exchange, by_method: Mapping[str, Route] | None, route: Route | None
    ) -> None:
        if by_method is not None:
            one = route or next(iter(by_method.values()))
            exchange.route, exchange.protocol = one.path, one.protocol
        elif exchange.path.startswith("/v1/messages"):
            exchange.protocol = "messages"
        exchange.extra_headers += cors_headers(exchange, self._state.settings.allow_origins)
        if by_method is not None and is_preflight(exchange):
            await exchange.respond(204, b"")
            return
        if not (route and route.is_open):
            self._check_key(exchange)
        if by_method is None:
            text = f"There is no {exchange.method} {exchange.path[:200]}. See /docs."
            raise ApiError(404, text, code="not_found")
        if route is None:
            allowed = ", ".join(by_method)
            text = f"{exchange.path} takes {allowed}, not {exchange.method[:20]}."
            raise ApiError(405, text, code="method_not_allowed", headers={"allow": allowed})
        await route.handler(self._state, exchange)

    def _find(self, path: str) -> Mapping[str, Route] | None:
        found = self._routes.get(path)
        if found is None and path.startswith("/v1/models/"):
            found = self._routes["/v1/models/"]
        return found

    def _check_key(self, exchange: Exchange) -> None:
        """Raises ApiError (401). Every key is compared, so that time tells nothing."""
        if not self._keys:
            return
        kind, _, value = exchange.headers.get("authorization", "").partition(" ")
        given = value.strip() if kind.lower() == "bearer" else ""
        shown = (given or exchange.headers.get("x-api-key", "")).encode("latin-1")
        if not sum(hmac.compare_digest(shown, key) for key in self._keys):
            text = "The API key is missing or wrong. Send it as Authorization: Bearer KEY."
            scheme = {"www-authenticate": "Bearer"}
            raise ApiError(401, text, code="invalid_api_key", headers=scheme)

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        told = as_api_error(error)
        if told.status == 500:
            # The traceback has lines of code, and no values of a request.
            _LOG.error("fault in request %s", exchange.request_id, exc_info=error)
        if exchange.has_started:
            return
        data = error_object(told, exchange.protocol, exchange.request_id)
        exchange.failure = told
        with suppress(OSError):
            await exchange.respond_json(told.status, data, told.all_headers())

    def _close(self, exchange: Exchange, *, is_quiet: bool) -> None:
        status = CLIENT_LEFT if exchange.client_left else exchange.status
        if exchange.failure is not None and exchange.status == 200:
            status = exchange.failure.status
        stats = self._state.stats
        stats.requests[exchange.route, status] += 1
        stats.aborted += exchange.client_left
        if is_quiet and status != 500:
            return
        now_s, first_s = time.monotonic(), exchange.first_token_s
        _LOG.info(
            "%s %s %s %d prompt %d cached %d output %d first %s ms total %.0f ms%s",
            exchange.request_id,
            exchange.method[:10],
            exchange.route,
            status,
            exchange.prompt_tokens,
            exchange.cached_tokens,
            exchange.output_tokens,
            "-" if first_s is None else f"{1000 * (first_s - exchange.arrival_s):.0f}",
            1000 * (now_s - exchange.arrival_s),
            "" if exchange.failure is None else f" {exchange.failure.code}",
        )

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The start and end of the server, and what is no HTTP."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1003})
