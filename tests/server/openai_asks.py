"""What the tests with the `openai` client ask, and how they read a stream."""

from random import Random
from typing import Any

import openai

from deepinfer.tools.eval_structured import make_call

SUM = [{"role": "user", "content": "What is 47 + 38?"}]
PLAIN: dict[str, Any] = {"thinking": {"type": "disabled"}}
CALL = make_call(Random(3), "held_out", 2)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"model": "demo", "messages": SUM, "temperature": 0, "extra_body": PLAIN, **fields}
    return client.chat.completions.create(**given)


def joined(stream: Any) -> tuple[str, str, list[Any]]:
    """(content, reasoning, chunks) of a stream."""
    chunks = list(stream)
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    content = "".join(delta.content or "" for delta in deltas)
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return content, reasoning, chunks
