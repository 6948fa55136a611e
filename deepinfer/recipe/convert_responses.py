"""A Responses request to a conversation (spec recipe 6.2).

Takes the fields as shape_responses.py has read them. The order of the checks is the order in which
the released recipe finds faults.
"""

from collections.abc import Mapping
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
from deepinfer.recipe.conversation import (
    Conversation,
    Message,
    SystemMessage,
    ToolChoice,
    ToolDefinition,
    UserMessage,
    Version,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.fields import shortest_single
from deepinfer.recipe.history import keep_shown_tools, says_json, settle_reasoning
from deepinfer.recipe.input_items import InputItems
from deepinfer.recipe.namespaces import SERVER_TOOLS, Functions
from deepinfer.recipe.request import ConversationRequest, ConversionOptions, ResponsesEcho
from deepinfer.recipe.sampling_rules import Asked
from deepinfer.recipe.shape_responses import SKIPPED
from deepinfer.recipe.tools import settle_tools

_PLAIN = {"type": "text"}


def convert_responses(
    request: Mapping[str, Any], options: ConversionOptions
) -> ConversationRequest:
    """The request, understood. Raises ConversionError."""
    version = version_of(request["model"], options)
    reasoning = request["reasoning"] or {}
    thinking, effort = thinking_and_effort(None, reasoning.get("effort"), options)
    functions = Functions(
        request["tools"] or [],
        version,
        rejects_web_search=options.responses_web_search == "reject",
    )
    given, found = _messages(request, functions, version, options)
    messages = settle_reasoning(
        given,
        options,
        "reasoning_text",
        thinking=thinking,
        declares_tools=bool(functions.declared or found),
    )
    choice, named = _choice(request["tool_choice"], options)
    tools, choice = settle_tools([*functions.declared, *found], choice, named, thinking=thinking)
    form = (request["text"] or {}).get("format", _PLAIN)
    if form["type"] == "json_object" and not says_json(messages):
        raise ConversionError(
            "Response input messages must contain the word 'json' in some form to use "
            "'text.format' of type 'json_object'.",
            field="input",
        )
    answer = Format(form["type"])
    if form["type"] == "json_schema":
        answer = json_schema_format(form["schema"], form["strict"])
    return assemble(
        Wanted(
            protocol="responses",
            model=request["model"],
            version=version,
            conversation=Conversation(
                messages=keep_shown_tools(messages, tools),
                thinking=thinking,
                tools=tools,
                tool_choice=choice,
                effort=effort,
                response_format=answer.kind,
                response_schema=answer.schema,
            ),
            asked=Asked(
                temperature=request["temperature"],
                top_p=request["top_p"],
                max_tokens=request["max_output_tokens"],
                logprobs=request["top_logprobs"] is not None,
                top_logprobs=request["top_logprobs"],
                max_tokens_bound=max_tokens_bound(options, thinking=thinking),
            ),
            format=answer,
            names_format=answer.kind != "text",
            stream=bool(request["stream"]),
            echo=_echo(request, functions),
        ),
        options,
    )


def _messages(
    request: Mapping[str, Any], functions: Functions, version: Version, options: ConversionOptions
) -> tuple[list[Message], list[ToolDefinition]]:
    """The messages, and the tools that searches of the history have found."""
    instructions, given = request["instructions"], request["input"]
    if given is None and not instructions:
        raise ConversionError("Either input or instructions must be provided", field="input")
    if given == []:
        raise ConversionError("Input items array must not be empty", field="input")
    first: list[Message] = [SystemMessage(instructions)] if instructions else []
    if isinstance(given, str):
        return [*first, UserMessage(given)], []
    items = InputItems(functions, version, options.special_tokens.image)
    items.take(given or [])
    return first + items.messages, items.found


def _choice(choice: Any, options: ConversionOptions) -> tuple[ToolChoice, str | None]:
    """How the model may choose, and the tool that it must call."""
    if not isinstance(choice, dict):
        return choice or "auto", None
    if choice["type"] in ("function", "custom"):
        return "auto", choice["name"]
    if options.responses_web_search == "reject":
        raise ConversionError(SERVER_TOOLS.capitalize(), field="tool_choice")
    return "auto", None


def _echo(request: Mapping[str, Any], functions: Functions) -> ResponsesEcho:
    """What the answer repeats, with what it says of settings that the request does not have."""
    reasoning, text = request["reasoning"] or {}, request["text"] or {}
    tools = [tool for tool in request["tools"] or [] if tool["type"] != SKIPPED]
    return ResponsesEcho(
        instructions=request["instructions"],
        max_output_tokens=request["max_output_tokens"],
        temperature=shortest_single(_or(request["temperature"], 1.0)),
        top_p=shortest_single(_or(request["top_p"], 1.0)),
        top_logprobs=request["top_logprobs"] or 0,
        reasoning={
            "effort": reasoning.get("effort"),
            "summary": reasoning.get("summary") or reasoning.get("generate_summary"),
        },
        text={"format": text.get("format", _PLAIN), "verbosity": text.get("verbosity")},
        tool_choice=request["tool_choice"] or "auto",
        tools=tools,
        user=request["user"],
        namespace_tools=functions.namespaced,
        custom_tools=frozenset(tool["name"] for tool in tools if tool["type"] == "custom"),
        client_tool_search=functions.searches,
    )


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
