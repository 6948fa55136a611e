"""The bytes of a body -> an object of JSON, and long work on it away from the event loop.

Knows limits and JSON. Does not know the fields of any API.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from deepinfer.recipe.errors import BodyError
from deepinfer.recipe.json_text import read_json
from deepinfer.recipe.syntax_fault import syntax_fault
from deepinfer.server.exchange import Exchange
from deepinfer.server.settings import ServerSettings

# Below this, checking and tokenising take about as long as a switch of threads is worth.
LARGE_BYTES = 8 * 1024
_POOL = ThreadPoolExecutor(2, thread_name_prefix="prompts")

P = ParamSpec("P")
T = TypeVar("T")


async def read_body(exchange: Exchange, settings: ServerSettings) -> bytes:
    """The body, within the limits. Raises ApiError and ClientLeft."""
    return await exchange.body(settings.max_body_bytes, settings.body_timeout_s)


def json_object(body: bytes) -> dict[str, Any]:
    """Raises BodyError for what is no JSON, too deep, or no object."""
    try:
        value = read_json(body.decode())
    except ValueError:
        raise BodyError(f"invalid JSON request: {syntax_fault(body)}") from None
    if not isinstance(value, dict):
        raise BodyError("invalid request body: expected a JSON object")
    return value


async def by_size(num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` returns; for a large body in a thread, so that others' answers go on."""
    if num_bytes < LARGE_BYTES:
        return work(*args, **kwargs)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_POOL, partial(work, *args, **kwargs))
