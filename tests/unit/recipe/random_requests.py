"""Random requests of the three protocols: whole ones, and ones with a few things changed.

Only makes them; knows nothing of what they should become. The same random numbers give the same
requests.
"""

import copy
import random
from typing import Any

from tests.unit.recipe.random_chat import random_chat
from tests.unit.recipe.random_messages import random_messages
from tests.unit.recipe.random_responses import random_responses

MODELS = ("DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash")
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 17, 300, 2**33, 1.5, -0.5, 1e-7, "", "x", "none", "auto"),
    *([], [1], ["x"], {}, {"a": 1}, {"type": "x"}, {"type": "function"}, {"x": None}),
)
_MAKERS = {"chat": random_chat, "responses": random_responses, "messages": random_messages}


def random_request(rng: random.Random, protocol: str) -> dict[str, Any]:
    """A request that is mostly right, its fields in any order."""
    request = {"model": rng.choice(MODELS)} | _MAKERS[protocol](rng)
    names = list(request)
    rng.shuffle(names)
    return {name: request[name] for name in names}


def changed(rng: random.Random, request: dict[str, Any], times: int) -> dict[str, Any]:
    """A copy in which fields and items have been left out, replaced, repeated or moved."""
    request = copy.deepcopy(request)
    for _ in range(times):
        if request:
            _change(rng, rng.choice(_places(request)))
    return request


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a value."""
    keys = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in keys:
        found.append((value, key))
        if isinstance(inner, dict | list):
            found += _places(inner)
    return found


def _change(rng: random.Random, place: tuple[Any, Any]) -> None:
    container, key = place
    action = rng.randrange(4)
    if action == 0:
        del container[key]
    elif action == 1 and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
    elif action == 2 and isinstance(container, list):
        rng.shuffle(container)
    else:
        container[key] = copy.deepcopy(rng.choice(ODD_VALUES))
