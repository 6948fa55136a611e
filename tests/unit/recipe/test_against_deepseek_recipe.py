"""Every odd conversation, rendered by the released recipe too: the two must not differ."""

from dataclasses import asdict
from typing import Any

import pytest

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    ImageSource,
    Message,
    SpecialTokens,
    SystemMessage,
    ToolDefinition,
    ToolMessage,
    UserMessage,
    Version,
)
from deepinfer.recipe.render import render
from tests.unit.recipe.random_conversations import Source

released = pytest.importorskip("deepseek_recipe", reason="pip install deepseek_recipe to compare")

NUM_CONVERSATIONS = 1000
OTHER_TOKENS = SpecialTokens(
    bos="<s>", eos="</s>", dsml="DSML", image="[IMG]", user="{U}", thinking_end="<User>"
)


def _their_images(sources: tuple[ImageSource, ...]) -> Any:
    return [released.UrlImageSource(source.url) for source in sources]


def _their_tools(tools: tuple[ToolDefinition, ...]) -> Any:
    return [released.ToolDefinition(**asdict(tool)) for tool in tools]


def _their_message(message: Message, image: str) -> Any:
    if isinstance(message, AssistantMessage):
        calls = message.tool_calls
        return released.AssistantMessage(
            message.content,
            message.reasoning_content,
            None if calls is None else [released.ToolCall(**asdict(call)) for call in calls],
            message.prefix,
        )
    if isinstance(message, SystemMessage):
        images, tools = _their_images(message.image_sources), _their_tools(message.tools)
        return released.SystemMessage(message.content, images, tools, image_token=image)
    if isinstance(message, UserMessage):
        images = _their_images(message.image_sources)
        return released.UserMessage(message.content, images, image_token=image)
    if isinstance(message, ToolMessage):
        images = _their_images(message.image_sources)
        return released.ToolMessage(
            message.content, message.tool_call_id, images, image_token=image
        )
    return released.LatestReminderMessage(message.content)


def _their_rendering(conversation: Conversation, version: Version, tokens: SpecialTokens) -> Any:
    is_object = conversation.response_format == "json_object"
    encodings = {"v4": released.DeepseekV4Encoding, "v4.1": released.DeepseekV41Encoding}
    encoding = encodings[version]().with_special_tokens(released.SpecialTokens(**asdict(tokens)))
    return encoding.render_conversation(
        released.Conversation(
            [_their_message(message, tokens.image) for message in conversation.messages],
            thinking_mode=conversation.thinking,
            tools=_their_tools(conversation.tools),
            tool_choice=conversation.tool_choice,
            reasoning_effort=conversation.effort,
            response_format="json_object" if is_object else "text",
            response_schema=conversation.response_schema,
            response_regex=conversation.response_regex,
        )
    )


@pytest.mark.parametrize("version", ["v4", "v4.1"])
@pytest.mark.parametrize("tokens", [SpecialTokens(), OTHER_TOKENS], ids=["usual", "others"])
def test_prompts_are_equal(version: Version, tokens: SpecialTokens) -> None:
    """A rule about a rare order of messages is missing, and such prompts are not the model's."""
    for seed in range(NUM_CONVERSATIONS):
        conversation = Source(seed).conversation()
        ours = render(conversation, version, tokens)
        theirs = _their_rendering(conversation, version, tokens)
        urls = [source.url for source in ours.image_sources]
        assert ours.prompt == theirs.prompt, f"seed {seed}"
        assert list(ours.special_ranges) == theirs.special_ranges, f"seed {seed}"
        assert urls == [source.url for source in theirs.image_sources], f"seed {seed}"
