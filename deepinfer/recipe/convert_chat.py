"""A Chat Completions request to a conversation (spec recipe 6.1).

Takes the fields as shape_chat.py has read them. The order of the checks is the order in which the
released recipe finds faults.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.recipe.assemble import (
    Format,
    Wanted,
    assemble,
    json_schema_format,
    max_tokens_bound,
    thinking_and_effort,
    version_of,
)
from deepinfer.recipe.chat_messages import chat_messages
from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    Message,
    ToolChoice,
    ToolDefinition,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.history import says_json, settle_reasoning
from deepinfer.recipe.request import ConversationRequest, ConversionOptions
from deepinfer.recipe.sampling_rules import Asked, check_stops
from deepinfer.recipe.tools import check_name, settle_tools


def convert_chat(request: Mapping[str, Any], options: ConversionOptions) -> ConversationRequest:
    """The request, understood. Raises ConversionError."""
    version = version_of(request["model"], options)
    switch = request["thinking"] and request["thinking"]["type"]
    thinking, effort = thinking_and_effort(switch, request["reasoning_effort"], options)
    declared = _tools(request["tools"] or [])
    given = chat_messages(request["messages"], version, options.special_tokens.image)
    form = request["response_format"] or {"type": "text"}
    messages = settle_reasoning(
        given, options, "reasoning_content", thinking=thinking, declares_tools=bool(declared)
    )
    if any(_is_prefix(one) for one in messages[:-1]):
        raise ConversionError(
            "Invalid completion message: prefix set true with message which is not final message "
            "or message role is not assistant",
            field="messages",
        )
    if form["type"] == "json_object" and not says_json(messages):
        raise ConversionError(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type "
            "'json_object'.",
            field="messages",
        )
    choice, named = _choice(request["tool_choice"])
    tools, choice = settle_tools(declared, choice, named, thinking=thinking)
    _check_prefix(messages, declared, form["type"])
    stops = check_stops(request["stop"])
    if request["stream_options"] is not None and not request["stream"]:
        raise ConversionError(
            "stream_options should be set along with stream = true", field="stream_options"
        )
    answer = _format(form)
    return assemble(
        Wanted(
            protocol="chat",
            model=request["model"],
            version=version,
            conversation=Conversation(
                messages=messages,
                thinking=thinking,
                tools=tools,
                tool_choice=choice,
                effort=effort,
                response_format=answer.kind,
                response_schema=answer.schema,
                response_regex=answer.regex,
            ),
            asked=_asked(request, max_tokens_bound(options, thinking=thinking)),
            format=answer,
            names_format=request["response_format"] is not None,
            stops=stops,
            stream=bool(request["stream"]),
            include_usage=bool((request["stream_options"] or {}).get("include_usage")),
        ),
        options,
    )


def _asked(request: Mapping[str, Any], bound: int) -> Asked:
    names = (
        *("temperature", "top_p", "max_tokens", "top_logprobs", "seed", "n"),
        *("frequency_penalty", "presence_penalty"),
    )
    return Asked(
        **{name: request[name] for name in names},
        logprobs=bool(request["logprobs"]),
        max_tokens_bound=bound,
    )


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[ToolDefinition]:
    functions = [tool["function"] for tool in tools]
    for index, one in enumerate(functions):
        check_name(one["name"], f"tools[{index}].function.name")
    return [
        ToolDefinition(one["name"], one["description"], one["parameters"], one["strict"])
        for one in functions
    ]


def _choice(choice: Any) -> tuple[ToolChoice, str | None]:
    """How the model may choose, and the tool that it must call."""
    if isinstance(choice, dict):
        return "auto", choice["name"]
    return choice or "auto", None


def _format(form: Mapping[str, Any]) -> Format:
    match form["type"]:
        case "json_schema":
            schema = form["json_schema"]
            return json_schema_format(schema["schema"], schema["strict"])
        case "regex":
            return Format("regex", regex=form["regex"])
        case kind:
            return Format(kind)


def _is_prefix(message: Message) -> bool:
    return isinstance(message, AssistantMessage) and message.prefix


def _check_prefix(
    messages: Sequence[Message], declared: Sequence[ToolDefinition], form: str
) -> None:
    """A message to be continued allows neither tools nor the looser kind of JSON."""
    if not messages or not _is_prefix(messages[-1]):
        return
    if form == "json_object":
        raise ConversionError(
            "response_format json_object should not be used with prefix", field="response_format"
        )
    calls = (one.tool_calls for one in messages if isinstance(one, AssistantMessage))
    if declared or any(calls):
        raise ConversionError("Function call should not be used with prefix", field="messages")
