"""The last step of a conversion, alike in all protocols: from what was asked to what is done.

Knows thinking, effort, response formats and limits (spec recipe 5). Does not know how a protocol
spells them.
"""

from dataclasses import dataclass
from typing import Any

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    Effort,
    ResponseFormat,
    Version,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.request import (
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    OutputConstraint,
    ParsingOptions,
    Protocol,
    ResponsesEcho,
    ThinkingStage,
)
from deepinfer.recipe.sampling_rules import (
    Asked,
    check_sampling,
    settled_temperature,
    settled_top_p,
)
from deepinfer.recipe.strict_schema import strict_schema
from deepinfer.recipe.tools import check_schema, check_strict, function_tools

_EFFORTS: dict[str, Effort] = {
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "xhigh",
    "ultra": "max",
    "max": "max",
}
_BAD_SCHEMA = "Invalid json schema: "


@dataclass(frozen=True)
class Format:
    """The format of the answer. schema: as it was given; closed: what decoding is held to."""

    kind: ResponseFormat = "text"
    schema: Any = None
    closed: Any = None
    regex: str | None = None


def version_of(model: str, options: ConversionOptions) -> Version:
    """The version of a model name. Raises ConversionError for a name that is not known."""
    if model not in options.model_versions:
        names = ", ".join(sorted(options.model_versions))
        raise ConversionError(
            f"The supported API model names are {names}, but you passed {model}.", field="model"
        )
    return options.model_versions[model]


def thinking_and_effort(
    switch: str | None, effort: str | None, options: ConversionOptions
) -> tuple[bool, Effort | None]:
    """Whether the model is to think, and how hard.

    switch: "enabled", "adaptive" or "disabled"; it counts for more than the effort.
    """
    if switch is not None:
        thinking = switch != "disabled"
    elif effort is not None:
        thinking = effort != "none"
    else:
        thinking = options.default_thinking
    return thinking, _EFFORTS.get(effort or "", "high") if thinking else None


def json_schema_format(schema: Any, strict: bool | None) -> Format:
    """A response format with a schema. Raises ConversionError if it is none."""
    if not strict:
        check_schema(schema, _BAD_SCHEMA, "response_format")
        return Format("json_schema", schema, schema)
    closed = strict_schema(schema, unreadable=_BAD_SCHEMA, whole="json schema", empty=False)
    return Format("json_schema", schema, closed)


def max_tokens_bound(options: ConversionOptions, *, thinking: bool) -> int:
    """The most tokens that a request may ask for."""
    if thinking:
        return options.thinking_max_tokens_bound
    return options.non_thinking_max_tokens_bound


@dataclass(frozen=True)
class Wanted:
    """What a protocol's conversion has found out, before sampling is settled.

    names_format: the request has a format of its own, be it plain text.
    """

    protocol: Protocol
    model: str
    version: Version
    conversation: Conversation
    asked: Asked
    format: Format = Format()
    names_format: bool = False
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    echo: ResponsesEcho | None = None


def assemble(wanted: Wanted, options: ConversionOptions) -> ConversationRequest:
    """The request, understood. Raises ConversionError for values that go too far."""
    conversation, asked = wanted.conversation, wanted.asked
    check_strict(conversation.tools, names_format=wanted.names_format)
    check_sampling(asked)
    has_tools = conversation.has_tools
    return ConversationRequest(
        protocol=wanted.protocol,
        model=wanted.model,
        version=wanted.version,
        conversation=conversation,
        inference=InferenceOptions(
            temperature=settled_temperature(asked.temperature, thinking=conversation.thinking),
            top_p=settled_top_p(
                asked.top_p,
                wanted.version,
                thinking=conversation.thinking,
                has_tools=has_tools,
            ),
            max_tokens=asked.max_tokens,
            logprobs=asked.logprobs,
            top_logprobs=asked.top_logprobs,
            seed=asked.seed,
            output_constraint=_constraint(conversation, wanted.format),
        ),
        parsing=ParsingOptions(
            parse_tool_calls=has_tools,
            starts_in_tool_calls=has_tools and conversation.tool_choice == "required",
            parse_json_output=wanted.format.kind == "json_object",
            thinking_stage=_stage(conversation),
            stop_sequences=wanted.stops,
            special_tokens=options.special_tokens,
        ),
        stream=wanted.stream,
        include_usage=wanted.include_usage,
        echo=wanted.echo,
    )


def _constraint(conversation: Conversation, form: Format) -> OutputConstraint | None:
    if conversation.has_tools:
        required = conversation.tool_choice == "required"
        return OutputConstraint(
            "tool_call_required" if required else "tool_call", function_tools(conversation.tools)
        )
    match form.kind:
        case "json_object":
            return OutputConstraint("json", "")
        case "json_schema":
            return OutputConstraint("json", compact(form.closed))
        case "regex":
            return OutputConstraint("regex", form.regex or "")
        case _:
            return None


def _stage(conversation: Conversation) -> ThinkingStage | None:
    """Where the answer starts: a message to be continued may have done its thinking already."""
    if not conversation.thinking:
        return None
    last = conversation.messages[-1] if conversation.messages else None
    if isinstance(last, AssistantMessage) and last.prefix:
        if last.content:
            return "ContentContinuation"
        if last.reasoning_content:
            return "ReasoningContinuation"
    return "ReasoningStart"
