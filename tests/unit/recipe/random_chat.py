"""Random requests of Chat Completions."""

import random
from typing import Any

from tests.unit.recipe.random_pieces import (
    EFFORTS,
    IDS,
    NAMES,
    PIXEL,
    function,
    sampling,
    schema,
    several,
    some,
    text,
)


def _chat_content(rng: random.Random) -> Any:
    if rng.random() < 0.6:
        return text(rng)
    blocks = (
        lambda: {"type": "text", "text": text(rng)},
        lambda: {"type": "image_url", "image_url": {"url": PIXEL} | some(rng, detail="low")},
        lambda: {"type": "image_url", "image_url": {"url": rng.choice(("http://x", "ftp:"))}},
        lambda: {"type": "file", "file_data": PIXEL},
    )
    return [make() for make in rng.choices(blocks, (8, 1, 1, 1), k=rng.randint(0, 3))]


def _chat_turn(rng: random.Random) -> list[dict[str, Any]]:
    role = rng.choices(
        ("user", "assistant", "tools", "system", "latest_reminder"), (5, 3, 3, 1, 1)
    )[0]
    if role == "latest_reminder":
        return [{"role": role, "content": text(rng)}]
    if role != "tools":
        more = some(rng, reasoning_content=text(rng)) if role == "assistant" else {}
        return [{"role": role, "content": _chat_content(rng)} | more]
    ids = rng.sample(IDS, rng.randint(1, 3))
    calls = [
        {"id": i, "type": "function", "function": {"name": rng.choice(NAMES), "arguments": "{}"}}
        for i in ids
    ]
    rng.shuffle(ids)
    call = {"role": "assistant", "tool_calls": calls}
    return [
        call | some(rng, content=rng.choice((None, "", "t")), reasoning_content=text(rng)),
        *({"role": "tool", "tool_call_id": i, "content": _chat_content(rng)} for i in ids),
    ]


def _chat_format(rng: random.Random) -> dict[str, Any]:
    kind = rng.choice(("text", "json_object", "json_schema", "regex"))
    if kind == "json_schema":
        strict = some(rng, 0.3, strict=rng.random() < 0.5)
        return {"type": kind, "json_schema": {"name": "r", "schema": schema(rng)} | strict}
    return {"type": kind} | ({"regex": "[0-9]+"} if kind == "regex" else {})


def random_chat(rng: random.Random) -> dict[str, Any]:
    messages = [m for turn in several(rng, lambda: _chat_turn(rng), 4, 1) for m in turn]
    if rng.random() < 0.1:
        messages.append({"role": "assistant", "content": text(rng), "prefix": True})
    named = {"type": "function", "function": {"name": rng.choice(NAMES)}}
    return (
        {"messages": messages}
        | sampling(rng)
        | some(
            rng,
            0.2,
            thinking={"type": rng.choice(("enabled", "disabled", "disabled", "adaptive"))},
            reasoning_effort=rng.choice(EFFORTS),
            tools=lambda: several(rng, lambda: {"type": "function", "function": function(rng)}, 3),
            tool_choice=rng.choice(("auto", "none", "required", named, named)),
            response_format=lambda: _chat_format(rng),
            stop=rng.choice(("", "x", ["a", "b"], ["a", ""], ["a"] * 17)),
            max_tokens=rng.choice((0, 1, 99, 393_216, 393_217)),
            n=rng.choice((1, 2)),
            seed=rng.choice((0, 2**62, 2**63)),
            logprobs=rng.random() < 0.7,
            top_logprobs=rng.choice((0, 3, 20, 21)),
            frequency_penalty=rng.choice((-2, 0.5, 2.5)),
            presence_penalty=rng.choice((-2.5, 0.5, 2)),
            stream_options={"include_usage": True},
        )
    )
