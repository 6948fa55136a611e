"""The recorded renderings: conversations to prompts."""

from typing import Any

import pytest

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    ImageSource,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.render import render
from tests.golden.recipe_cases import cases


def message_of(record: dict[str, Any]) -> Message:
    content = record["content"]
    images = tuple(ImageSource(url=url) for url in record.get("images", ()))
    tools = tuple(ToolDefinition(**tool) for tool in record.get("tools", ()))
    if record["role"] == "assistant":
        calls = record.get("tool_calls")
        return AssistantMessage(
            content,
            record.get("reasoning_content"),
            None if calls is None else tuple(ToolCall(**call) for call in calls),
            record.get("prefix", False),
        )
    if record["role"] == "tool":
        return ToolMessage(content, record.get("tool_call_id"), images)
    if record["role"] == "system":
        return SystemMessage(content, images, tools)
    if record["role"] == "user":
        return UserMessage(content, images)
    assert record["role"] == "latest_reminder"
    return LatestReminderMessage(content)


def conversation_of(record: dict[str, Any]) -> Conversation:
    schema = record.get("response_schema")
    return Conversation(
        messages=tuple(message_of(message) for message in record["messages"]),
        thinking=record.get("thinking_mode", True),
        tools=tuple(ToolDefinition(**tool) for tool in record.get("tools", ())),
        tool_choice=record.get("tool_choice", "auto"),
        effort=record.get("reasoning_effort"),
        response_format="text" if schema is None else "json_schema",
        response_schema=schema,
    )


@pytest.mark.parametrize("case", cases("render"), ids=lambda case: case["id"])
def test_recorded_rendering(case: dict[str, Any]) -> None:
    """A prompt differs from the released recipe's, so the model reads what it never learned."""
    rendered = render(conversation_of(case["conversation"]), case["version"])
    assert rendered.prompt == case["prompt"]
    assert [list(pair) for pair in rendered.special_ranges] == case["special_ranges"]
    assert [source.url for source in rendered.image_sources] == case["image_urls"]
