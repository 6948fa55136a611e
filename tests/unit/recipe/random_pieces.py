"""What random requests of all protocols are made of."""

import random
from typing import Any

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
TEXTS = ("", "a", "json", "Say é\n", "<think>", "<｜image｜>", "\n\n")
NAMES = ("f", "g", "d-1", "A_b")
IDS = ("1", "2", "b", "a", "10")
PIXEL = "data:image/png;base64,aQ=="
SCHEMAS: tuple[Any, ...] = (
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "minLength": 1}}},
    {
        "type": "object",
        "properties": {"n": {"type": ["integer", "null"]}, "o": {"$ref": "#"}},
        "required": ["n", "o"],
        "description": "D",
    },
    {"properties": {"x": {"enum": [1e-5, 2.0]}}, "type": "object", "title": "T"},
    {},
    {"type": "object", "properties": {"a": {"type": "text"}}},
    {"type": "object", "required": ["q", "q"]},
)


def some(rng: random.Random, chance: float = 0.5, **fields: Any) -> dict[str, Any]:
    """Some of the fields; a function makes the value only if it is needed."""
    return {k: v() if callable(v) else v for k, v in fields.items() if rng.random() < chance}


def several(rng: random.Random, make: Any, most: int = 3, least: int = 0) -> list[Any]:
    return [make() for _ in range(rng.randint(least, most))]


def text(rng: random.Random) -> str:
    return rng.choice(TEXTS)


def sampling(rng: random.Random) -> dict[str, Any]:
    return some(
        rng,
        0.2,
        temperature=rng.choice((0, 0.3, 1, 2, 2.1, -0.1)),
        top_p=rng.choice((0.2, 0.95, 0.97, 1, 0, 1.5)),
        stream=rng.random() < 0.5,
    )


def schema(rng: random.Random) -> Any:
    return rng.choice(SCHEMAS[:4] if rng.random() < 0.9 else SCHEMAS)


def function(rng: random.Random, strict: float = 0.1) -> dict[str, Any]:
    return {"name": rng.choice(NAMES)} | some(
        rng,
        description=text(rng),
        parameters=lambda: schema(rng),
        strict=rng.random() < strict,
    )
