"""A Messages request to a conversation (spec recipe 6.3).

Takes the fields as shape_messages.py has read them. The order of the checks is the order in which
the released recipe finds faults.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.recipe.assemble import (
    Wanted,
    assemble,
    max_tokens_bound,
    thinking_and_effort,
    version_of,
)
from deepinfer.recipe.blocks import BETWEEN_BLOCKS
from deepinfer.recipe.conversation import (
    Conversation,
    Message,
    SystemMessage,
    ToolChoice,
    ToolDefinition,
    Version,
)
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.history import keep_shown_tools, settle_reasoning
from deepinfer.recipe.message_blocks import MessageBlocks, Setting
from deepinfer.recipe.namespaces import SERVER_TOOLS
from deepinfer.recipe.request import ConversationRequest, ConversionOptions
from deepinfer.recipe.sampling_rules import Asked, check_stops
from deepinfer.recipe.tools import check_name, settle_tools, unknown_tool

_WEB_SEARCH = "web_search"
_BILLING = "x-anthropic-billing-header"
# A model that must call some tool may still say no: any is as auto.
_CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "auto", "none": "none"}


def convert_messages(request: Mapping[str, Any], options: ConversionOptions) -> ConversationRequest:
    """The request, understood. Raises ConversionError."""
    version = version_of(request["model"], options)
    switch = request["thinking"] and request["thinking"]["type"]
    wanted_effort = (request["output_config"] or {}).get("effort")
    thinking, effort = thinking_and_effort(switch, wanted_effort, options)
    drops_search = options.messages_web_search == "drop"
    given = request["tools"] or []
    declared = _tools(given, version, drops_search=drops_search)
    messages = settle_reasoning(
        _messages(request, declared, version, options),
        options,
        "content[].thinking",
        thinking=thinking,
        declares_tools=bool(given),
    )
    choice, named = _choice(request["tool_choice"])
    if drops_search and named == _WEB_SEARCH and len(declared) < len(given):
        named = None
    if named is not None and given and not declared:
        raise unknown_tool(named)
    tools, choice = settle_tools(declared, choice, named, thinking=thinking, schema_needed=True)
    stops = check_stops(request["stop_sequences"])
    bound = max_tokens_bound(options, thinking=thinking)
    max_tokens = request["max_tokens"]
    return assemble(
        Wanted(
            protocol="messages",
            model=request["model"],
            version=version,
            conversation=Conversation(
                messages=keep_shown_tools(messages, tools),
                thinking=thinking,
                tools=tools,
                tool_choice=choice,
                effort=effort,
            ),
            asked=Asked(
                temperature=request["temperature"],
                top_p=request["top_p"],
                max_tokens=None if max_tokens is None else min(max_tokens, bound),
                max_tokens_bound=bound,
            ),
            stops=stops,
            stream=bool(request["stream"]),
        ),
        options,
    )


def _tools(
    tools: Sequence[Mapping[str, Any]], version: Version, *, drops_search: bool
) -> list[ToolDefinition]:
    found = []
    for index, tool in enumerate(tools):
        if tool["type"] is not None:
            if drops_search and tool["type"].startswith(_WEB_SEARCH):
                continue
            raise ConversionError(f"tools[{index}]: {SERVER_TOOLS}", field=f"tools[{index}]")
        check_name(tool["name"], f"tools[{index}].name")
        deferred = version == "v4.1" and bool(tool["defer_loading"])
        schema = tool["input_schema"]
        found.append(ToolDefinition(tool["name"], tool["description"], schema, None, deferred))
    if found and all(tool.defer_loading for tool in found):
        raise ConversionError(
            "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.",
            field="tools",
        )
    return found


def _messages(
    request: Mapping[str, Any],
    tools: Sequence[ToolDefinition],
    version: Version,
    options: ConversionOptions,
) -> list[Message]:
    if not request["messages"]:
        raise ConversionError("messages: at least one message is required", field="messages")
    blocks = MessageBlocks(
        Setting(
            version=version,
            tools={tool.name: tool for tool in tools},
            image_token=options.special_tokens.image,
            drops_server_blocks=options.messages_web_search == "drop",
        )
    )
    blocks.take(request["messages"])
    return [*_system(request["system"]), *blocks.messages]


def _system(system: Any) -> list[Message]:
    """The first message; a client's own header in it is not for the model."""
    if system is None:
        return []
    if isinstance(system, str):
        return [SystemMessage(system)]
    texts = [block["text"] for block in system]
    if texts and texts[0].startswith(_BILLING):
        del texts[0]
    return [SystemMessage(BETWEEN_BLOCKS.join(texts))]


def _choice(choice: Mapping[str, Any] | None) -> tuple[ToolChoice, str | None]:
    """How the model may choose, and the tool that it must call."""
    if choice is None:
        return "auto", None
    if choice["type"] == "tool":
        return "auto", choice["name"]
    return _CHOICES[choice["type"]], None
