"""Random requests of Messages."""

import random
from typing import Any

from tests.unit.recipe.random_pieces import (
    EFFORTS,
    IDS,
    NAMES,
    sampling,
    schema,
    several,
    some,
    text,
)


def _block(rng: random.Random, *kinds: str) -> dict[str, Any]:
    makers = {
        "text": lambda: {"type": "text", "text": text(rng)},
        "image": lambda: {
            "type": "image",
            "source": rng.choice(
                (
                    {"type": "base64", "media_type": "image/jpg", "data": "aQ=="},
                    {"type": "url", "url": rng.choice(("http://x", "x"))},
                )
            ),
        },
        "document": lambda: {"type": "document", "source": some(rng, media_type="text/plain")},
        "thinking": lambda: {"type": "thinking", "thinking": text(rng), "signature": "s"},
        "server_tool_use": lambda: {
            "type": "server_tool_use",
            "id": "s",
            "name": "web_search",
            "input": {},
        },
        "tool_reference": lambda: {"type": "tool_reference", "tool_name": rng.choice(NAMES)},
        "tool_addition": lambda: {
            "type": "tool_addition",
            "tool": {"type": "tool_reference", "name": rng.choice(NAMES)},
        },
    }
    # Text is what most blocks are.
    return makers[rng.choice(("text", "text", "text", *kinds))]()


def _blocks(rng: random.Random, *kinds: str, least: int = 1) -> Any:
    if rng.random() < 0.5:
        return text(rng)
    return several(rng, lambda: _block(rng, *kinds), 3, least)


def _messages_turn(rng: random.Random) -> list[dict[str, Any]]:
    kind = rng.choices(("user", "assistant", "tools", "system"), (5, 3, 4, 1))[0]
    if kind == "user":
        return [{"role": kind, "content": _blocks(rng, "image", "document")}]
    if kind == "assistant":
        return [{"role": kind, "content": _blocks(rng, "thinking", "thinking", "server_tool_use")}]
    if kind == "system":
        return [{"role": kind, "content": _blocks(rng, "tool_addition", "document", least=0)}]
    ids = rng.sample(IDS, rng.randint(1, 3))
    uses = [
        {"type": "tool_use", "id": i, "name": rng.choice(NAMES), "input": {"b": 1.0, "a": [1e-5]}}
        for i in ids
    ]
    rng.shuffle(ids)
    results = [
        {"type": "tool_result", "tool_use_id": i}
        | some(rng, 0.8, content=_blocks(rng, "image", "tool_reference", least=0))
        for i in ids
    ]
    before = several(rng, lambda: _block(rng, "thinking"), 2)
    return [
        {"role": "assistant", "content": [*before, *uses]},
        {"role": "user", "content": [*results, *several(rng, lambda: _block(rng, "document"), 2)]},
    ]


def _messages_tool(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.05:
        return {"type": "web_search_20250305", "name": "web_search"}
    return {"name": rng.choice(NAMES), "input_schema": schema(rng)} | some(
        rng, 0.3, description=text(rng), defer_loading=rng.random() < 0.7
    )


def random_messages(rng: random.Random) -> dict[str, Any]:
    messages = [m for turn in several(rng, lambda: _messages_turn(rng), 4, 1) for m in turn]
    choice = rng.choice(("auto", "any", "none", "tool"))
    named = {"name": rng.choice((*NAMES, "web_search"))} if choice == "tool" else {}
    header = {"type": "text", "text": "x-anthropic-billing-header: 1"}
    return (
        {"messages": messages}
        | sampling(rng)
        | some(
            rng,
            0.3,
            max_tokens=rng.choice((0, 9, 999_999)),
            system=rng.choice(("", "S", [], [header, {"type": "text", "text": "T"}])),
            stop_sequences=rng.choice(([], ["x"], [""], ["x"] * 17)),
            thinking={"type": rng.choice(("enabled", "disabled", "disabled", "adaptive"))},
            output_config={"effort": rng.choice(EFFORTS)},
            tools=lambda: several(rng, lambda: _messages_tool(rng), 3),
            tool_choice={"type": choice} | named,
            metadata={"user_id": "u"},
        )
    )
