"""Random requests of Responses."""

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


def _responses_content(rng: random.Random) -> Any:
    if rng.random() < 0.6:
        return text(rng)
    blocks = (
        lambda: {"type": "input_text", "text": text(rng)},
        lambda: {"type": "input_image"} | some(rng, 0.8, image_url=PIXEL, detail="auto"),
        lambda: {"type": "input_file", "file_data": "x"},
    )
    return [make() for make in rng.choices(blocks, (8, 1, 1), k=rng.randint(0, 3))]


def _responses_tool(rng: random.Random) -> dict[str, Any]:
    kind = rng.choices(("function", "namespace", "rest"), (4, 2, 2))[0]
    if kind == "function":
        return {"type": "function"} | function(rng)
    if kind == "namespace":
        tools = several(rng, lambda: {"type": "function"} | function(rng), 2)
        return {"type": kind, "name": rng.choice(NAMES), "tools": tools} | some(
            rng, description=text(rng)
        )
    return rng.choice(
        (
            {"type": "custom", "name": "apply_patch"},
            {"type": "web_search", "search_context_size": "low"},
            {"type": "tool_search", "execution": "client", "description": "S"},
            {"type": "tool_search"},
            {"type": "file_search"},
        )
    )


def _responses_turn(rng: random.Random, free_ids: list[str]) -> list[dict[str, Any]]:
    kind = rng.choices(("message", "reasoning", "calls", "skipped"), (5, 2, 4, 1))[0]
    if kind == "message" or not free_ids:
        role = rng.choice(("user", "user", "assistant", "assistant", "system", "developer"))
        return [{"role": role, "content": _responses_content(rng)} | some(rng, type="message")]
    if kind == "reasoning":
        texts = several(rng, lambda: {"type": "reasoning_text", "text": text(rng)}, 2)
        return [{"type": kind, "summary": []} | some(rng, 0.8, content=texts)]
    if kind == "skipped":
        return [{"type": "web_search_call", "id": "w"}]
    ids = [free_ids.pop() for _ in range(min(len(free_ids), rng.randint(1, 2)))]
    pairs = [_responses_call(rng, one) for one in ids]
    outputs = [output for _, output in pairs]
    rng.shuffle(outputs)
    return [*(call for call, _ in pairs), *outputs]


def _responses_call(rng: random.Random, call_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call and its output."""
    kind = rng.choices(("function", "custom", "search"), (5, 1, 1))[0]
    output = {"call_id": call_id, "output": _responses_content(rng)}
    if kind == "function":
        call = {"type": "function_call", "name": rng.choice(NAMES), "arguments": '{"a": 1}'}
        call |= some(rng, 0.4, namespace=rng.choice(NAMES))
        return call | {"call_id": call_id}, {"type": "function_call_output"} | output
    if kind == "custom":
        call = {"type": "custom_tool_call", "name": "apply_patch", "input": text(rng)}
        return call | {"call_id": call_id}, {"type": "custom_tool_call_output"} | output
    tools = several(rng, lambda: _responses_tool(rng), 2)
    return (
        {"type": "tool_search_call", "call_id": call_id, "arguments": {"q": 1e-7}},
        {"type": "tool_search_output", "call_id": call_id, "tools": tools},
    )


def random_responses(rng: random.Random) -> dict[str, Any]:
    ids = rng.sample(IDS, len(IDS))
    items = [i for turn in several(rng, lambda: _responses_turn(rng, ids), 5, 1) for i in turn]
    name = rng.choice((*NAMES, "apply_patch", "tool_search", "f::g"))
    choices = ("auto", "none", "required", {"type": "web_search"}, {"type": "custom", "name": name})
    answer = rng.choice(("text", "json_object", "json_schema"))
    named = {"name": "r", "schema": schema(rng), "strict": rng.random() < 0.3}
    answer_format = {"type": answer} | (named if answer == "json_schema" else {})
    return (
        {"input": items if rng.random() < 0.8 else text(rng)}
        | sampling(rng)
        | some(
            rng,
            0.3,
            instructions=text(rng),
            reasoning=some(
                rng, effort=rng.choice(EFFORTS), summary="auto", generate_summary="concise"
            ),
            tools=lambda: several(rng, lambda: _responses_tool(rng), 3),
            tool_choice=rng.choice((*choices, {"type": "function", "name": name})),
            text=some(rng, format=answer_format, verbosity="low"),
            max_output_tokens=rng.choice((0, 5, 393_217)),
            top_logprobs=rng.choice((0, 20, 21)),
            user="u",
        )
    )
