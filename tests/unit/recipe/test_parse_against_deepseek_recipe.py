"""Random outputs, read by the released recipe too: every event the same, and at the same time.

Left out is what is done otherwise on purpose. The released recipe says "stop" where a stream ends
without a reason, or a call opens only when it ends; it drops all tokens since the last complete
character where the last one is not; it repeats log-probabilities; it shows the end token.
"""

import json
import re
from random import Random
from typing import Any, NamedTuple

import pytest

from deepinfer.config.model import ModelConfig
from deepinfer.recipe.chunks import Chunk, EndReason, Finish, Ready, Text, Tokens
from deepinfer.recipe.request import ParsingOptions, Protocol, ResponsesEcho
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.golden.v4_tokenizer import v4_tokenizer, v4_tokenizer_path
from tests.unit.recipe.replay import marked_call_id, replay, request

released = pytest.importorskip("deepseek_recipe", reason="pip install deepseek_recipe to compare")

NUM_OUTPUTS = 1000
MODEL = "DeepSeek-V4-Pro"
D = "｜DSML｜"
CALL = (
    f'<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="k" string="true">v</{D}parameter>'
    f"\n</{D}invoke>\n</{D}tool_calls>"
)
FRAGMENTS = [
    *("a", "b", " ", "\n", "\n\n", "<", "</", "<<", f"<{D}", f"</{D}", D, "</think>", "<think>"),
    *("think>", "</thi", f"</{D}tool_calls>", f"</{D} calls>", 'invoke name="', 'f"', '"', "\\"),
    *("parameter name=", '"k"', ' string="', 'true">', 'false">', "{", "[", "```json\n", "```"),
    *("```\n", "\n```", "END", "EN", "E", "1", "\t", "\r", "é", "😀", "日本", "tool_calls>", CALL),
    *(" calls>", CALL[:60], CALL[20:], CALL.replace(f"{D}tool_", f"{D} ").replace("in", " in")),
]
STOPS = [(), ("END",), ("E", "END"), ("\n",), ("\nEND", "x"), ("<",), ("END", "ND"), ("</think",)]
_CALL_ID = re.compile(r"(call_\d\d_(?:ET_)?)[A-Za-z0-9]{20}\d{4}")
_TIME = re.compile(r'("(?:created|created_at|completed_at)": )\d+')
BODIES: dict[Protocol, dict[str, Any]] = {
    "chat": {"model": MODEL, "messages": [{"role": "user", "content": "x"}]},
    "responses": {"model": MODEL, "input": "x"},
    "messages": {"model": MODEL, "messages": [{"role": "user", "content": "x"}]},
}


class Released(NamedTuple):
    """The released recipe's classes for a protocol."""

    request: Any
    response: Any


CLASSES: dict[Protocol, Released] = {
    "chat": Released(released.ChatCompletionRequest, released.ChatCompletionResponse),
    "responses": Released(released.ResponsesRequest, released.ResponsesResponse),
    "messages": Released(released.MessagesRequest, released.MessagesResponse),
}


def _their_generator(protocol: Protocol, parsing: ParsingOptions) -> Any:
    body = dict(BODIES[protocol])
    thinks = parsing.thinking_stage is not None
    if protocol == "responses":
        body["reasoning"] = {"effort": "high" if thinks else "none"}
    else:
        body["thinking"] = {"type": "enabled" if thinks else "disabled"}
    if protocol == "chat" and parsing.thinking_stage == "ContentContinuation":
        prefix = {"role": "assistant", "content": "c", "prefix": True}
        body["messages"] = [*body["messages"], prefix]
    converted = CLASSES[protocol].request(body).convert(released.ConversionOptions())
    return CLASSES[protocol].request.chunk_generator(converted, "rid1", MODEL)


def _their_chunk(chunk: Chunk) -> Any:
    if isinstance(chunk, Text):
        return released.InferenceChunk.text(chunk.text, chunk.num_tokens)
    if isinstance(chunk, Tokens):
        return released.InferenceChunk.tokens(list(chunk.ids))
    if isinstance(chunk, Finish):
        reason = getattr(released.InferenceFinishReason, chunk.reason)
        return released.InferenceChunk.finish(reason)
    usage = released.PromptUsage(
        prompt_tokens=chunk.prompt_tokens, prompt_cache_hit_tokens=chunk.cached_tokens
    )
    return released.InferenceChunk.ready(prompt_usage=usage)


def theirs(
    protocol: Protocol, parsing: ParsingOptions, chunks: list[Chunk], tokenizer: Any = None
) -> list[str]:
    """The events of each push as JSON, then the answer."""
    stage = parsing.thinking_stage
    options = released.ParsingOptions(
        parse_tool_calls=parsing.parse_tool_calls,
        starts_in_tool_calls=parsing.starts_in_tool_calls,
        parse_json_output=parsing.parse_json_output,
        thinking_initial_stage=stage and getattr(released.ThinkingInitialStage, stage),
        stop_sequences=list(parsing.stop_sequences),
    )
    generator = _their_generator(protocol, parsing)
    processor = released.StreamProcessor(generator, options, tokenizer)
    response = CLASSES[protocol].response("rid1", MODEL, 0, 0, 0)
    pushes: list[Any] = []
    for chunk in chunks:
        events = processor.push(_their_chunk(chunk))
        pushes.append([json.loads(event.to_json()) for event in events])
        for event in events:
            response.accumulate(event)
        if processor.finished:
            break
    return [_plain(push) for push in [*pushes, json.loads(response.to_json())]]


def ours(
    protocol: Protocol,
    parsing: ParsingOptions,
    chunks: list[Chunk],
    tokenizer: Tokenizer | None = None,
) -> list[str]:
    """The same of this one."""
    effort = "none" if parsing.thinking_stage is None else "high"
    asked = request(
        protocol, parsing, echo=ResponsesEcho(reasoning={"effort": effort}), model=MODEL
    )
    made = replay(asked, chunks, tokenizer=tokenizer, call_id=marked_call_id)
    pushes: list[Any] = [[event.data for event in push] for push in made.pushes]
    return [_plain(push) for push in [*pushes, made.answer.data]]


def _plain(data: Any) -> str:
    text = json.dumps(data, ensure_ascii=False)
    return _TIME.sub(r"\g<1>0", _CALL_ID.sub(r"\1X", text))


def _random_parsing(random: Random) -> ParsingOptions:
    stages: Any = (None, None, "ReasoningStart", "ReasoningContinuation", "ContentContinuation")
    return ParsingOptions(
        parse_tool_calls=random.random() < 0.7,
        starts_in_tool_calls=random.random() < 0.15,
        parse_json_output=random.random() < 0.25,
        thinking_stage=random.choice(stages),
        stop_sequences=random.choice(STOPS),
    )


def _cut(output: Any, random: Random) -> list[Any]:
    """A string or a list, cut at random; sometimes into single elements."""
    num = random.choice([0, 1, 2, 5, 20, len(output)])
    ends = sorted(random.randrange(len(output) + 1) for _ in range(num))
    if num == len(output):
        ends = list(range(len(output)))
    return [output[i:j] for i, j in zip([0, *ends], [*ends, len(output)], strict=True)]


def _random_fragments(random: Random) -> list[str]:
    return [random.choice(FRAGMENTS) for _ in range(random.randrange(1, 25))]


def _random_end(random: Random) -> Finish:
    reasons: list[EndReason] = ["Stop", "Stop", "Length", "ContentFilter"]
    return Finish(random.choice(reasons))


def _random_protocol(random: Random) -> Protocol:
    return random.choice(list(BODIES))


def test_text() -> None:
    """A client of the released recipe gets another event, or gets it earlier or later."""
    for seed in range(NUM_OUTPUTS):
        random = Random(seed)
        protocol, parsing = _random_protocol(random), _random_parsing(random)
        pieces = _cut("".join(_random_fragments(random)), random)
        # A character in the end that no pattern holds: a call that opens last is left out.
        output = [Text(piece, 1) for piece in [*pieces, "x~"]]
        chunks: list[Chunk] = [Ready(11, 3), *output, _random_end(random)]
        assert ours(protocol, parsing, chunks) == theirs(protocol, parsing, chunks), pieces


def test_tokens(released_config: ModelConfig) -> None:
    """The same of tokens: a control token is taken for text, or a character comes too early."""
    tokenizer = v4_tokenizer(released_config)
    their_tokenizer = released.Tokenizer.from_file(str(v4_tokenizer_path()))
    others = [tokenizer.control_ids[s] for s in ("<｜User｜>", "<think>", "<｜▁pad▁｜>", D)]
    for seed in range(NUM_OUTPUTS // 2):
        random = Random(seed)
        protocol, parsing = _random_protocol(random), _random_parsing(random)
        ids: list[int] = []
        for fragment in [*_random_fragments(random), "x~"]:
            allowed = random.random() < 0.7
            ids += tokenizer.encode(fragment, add_bos=False, allow_control=allowed)
            ids += [random.choice(others)] if random.random() < 0.05 else []
        chunks: list[Chunk] = [Ready(11, 3), *map(Tokens, _cut(ids, random)), _random_end(random)]
        expected = theirs(protocol, parsing, chunks, their_tokenizer)
        assert ours(protocol, parsing, chunks, tokenizer) == expected, ids
