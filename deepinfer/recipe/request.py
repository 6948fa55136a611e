"""What a protocol's request asks for, once it is understood.

Plain data. The conversion of each protocol makes it, the renderer, the engine's front and the
output processor read their parts of it.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from deepinfer.recipe.conversation import Conversation, SpecialTokens, Version

Protocol = Literal["chat", "responses", "messages"]
# Where the stream machine starts when the prompt leaves a thinking block to it (spec recipe 7.1).
ThinkingStage = Literal["ReasoningStart", "ReasoningContinuation", "ContentContinuation"]

MODEL_VERSIONS: dict[str, Version] = {
    "DeepSeek-V4-Pro": "v4",
    "DeepSeek-V4.1-Flash": "v4.1",
}
MAX_TOKENS_BOUND = 393_216


@dataclass(frozen=True)
class ConversionOptions:
    """How requests are understood; the defaults are the released recipe's."""

    default_thinking: bool = True
    missing_reasoning: Literal["fill_empty", "reject"] = "fill_empty"
    responses_web_search: Literal["drop", "reject"] = "drop"
    messages_web_search: Literal["drop", "reject"] = "reject"
    thinking_max_tokens_bound: int = MAX_TOKENS_BOUND
    non_thinking_max_tokens_bound: int = MAX_TOKENS_BOUND
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)
    model_versions: dict[str, Version] = field(default_factory=lambda: dict(MODEL_VERSIONS))


@dataclass(frozen=True)
class OutputConstraint:
    """What constrained decoding should enforce.

    kind: "json" (schema is compact JSON, "" for any object), "regex", "tool_call" or
    "tool_call_required" (schema is a compact JSON array of function tools).
    """

    kind: Literal["json", "regex", "tool_call", "tool_call_required"]
    schema: str


@dataclass(frozen=True)
class InferenceOptions:
    """Sampling as the recipe resolves it. max_tokens None: `resolve_max_tokens` decides."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    output_constraint: OutputConstraint | None = None


@dataclass(frozen=True)
class ParsingOptions:
    """How the model's output is read (spec recipe 7.1)."""

    parse_tool_calls: bool = False
    starts_in_tool_calls: bool = False
    parse_json_output: bool = False
    thinking_stage: ThinkingStage | None = None
    stop_sequences: tuple[str, ...] = ()
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)


@dataclass(frozen=True)
class ResponsesEcho:
    """What a Responses answer repeats of its request (spec recipe 8.2), and how names map back.

    namespace_tools: the prompt's function name -> (namespace, local name).
    custom_tools: names of tools whose calls are custom_tool_call items (apply_patch).
    client_tool_search: a call of tool_search becomes a tool_search_call item.
    """

    instructions: Any = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    reasoning: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)
    tool_choice: Any = None
    tools: list[Any] = field(default_factory=list)
    user: Any = None
    namespace_tools: dict[str, tuple[str, str]] = field(default_factory=dict)
    custom_tools: frozenset[str] = frozenset()
    client_tool_search: bool = False


@dataclass(frozen=True)
class ConversationRequest:
    """A request of any protocol, understood.

    model: as the request named it. stream, include_usage: what the caller wants to receive.
    echo: Responses only.
    """

    protocol: Protocol
    model: str
    version: Version
    conversation: Conversation
    inference: InferenceOptions
    parsing: ParsingOptions
    stream: bool = False
    include_usage: bool = False
    echo: ResponsesEcho | None = None
