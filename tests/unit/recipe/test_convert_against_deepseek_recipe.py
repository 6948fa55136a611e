"""Random requests, right and wrong, converted by the released recipe too: no difference."""

import json
import random
from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.recipe import conversation as ours
from deepinfer.recipe.convert import convert
from deepinfer.recipe.errors import BodyError
from deepinfer.recipe.render import render
from deepinfer.recipe.request import ConversationRequest, ConversionOptions, Protocol
from tests.unit.recipe.random_requests import changed, random_request
from tests.unit.recipe.test_convert_cases import derived

released = pytest.importorskip("deepseek_recipe", reason="pip install deepseek_recipe to compare")

NUM_REQUESTS = 600
REQUESTS = {
    "chat": released.ChatCompletionRequest,
    "responses": released.ResponsesRequest,
    "messages": released.MessagesRequest,
}
ENCODINGS = {
    released.ModelVersion.DeepseekV4Pro: released.DeepseekV4Encoding,
    released.ModelVersion.DeepseekV41Flash: released.DeepseekV41Encoding,
}
STAGES = ("ReasoningStart", "ReasoningContinuation", "ContentContinuation")
ROLES = {
    ours.SystemMessage: "system",
    ours.UserMessage: "user",
    ours.AssistantMessage: "assistant",
    ours.ToolMessage: "tool",
    ours.LatestReminderMessage: "latest_reminder",
}
REJECTING = (
    ConversionOptions(
        missing_reasoning="reject", responses_web_search="reject", messages_web_search="drop"
    ),
    released.ConversionOptions(
        reasoning_content_behavior=released.ReasoningContentBehavior.Reject,
        responses_web_search=released.WebSearchBehavior.Reject,
        messages_web_search=released.WebSearchBehavior.Drop,
    ),
)
USUAL = (ConversionOptions(), released.ConversionOptions())


def _image(image: Any) -> tuple[Any, ...]:
    return image.detail, image.path, image.data_url, image.url


def _tool(tool: Any) -> tuple[Any, ...]:
    # As text: 1 and 1.0 differ, and so does another order of the keys.
    schema = json.dumps(tool.parameters)
    return tool.name, tool.description, schema, tool.strict, tool.defer_loading


def _message(message: Any) -> tuple[Any, ...]:
    calls = getattr(message, "tool_calls", None)
    return (
        ROLES.get(type(message)) or message.role,
        message.content,
        getattr(message, "reasoning_content", None),
        calls and [(call.id, call.name, call.arguments) for call in calls],
        getattr(message, "prefix", False),
        getattr(message, "tool_call_id", None),
        [_tool(tool) for tool in getattr(message, "tools", None) or ()],
        [_image(image) for image in getattr(message, "image_sources", ())],
    )


def _conversation(conversation: Any, prompt: Any) -> dict[str, Any]:
    return {
        "messages": [_message(message) for message in conversation.messages],
        "tools": [_tool(tool) for tool in conversation.tools],
        "schema": json.dumps(conversation.response_schema),
        "regex": conversation.response_regex,
        "prompt": prompt.prompt,
        "images": [_image(image) for image in prompt.image_sources],
    }


def _derived(request: Any) -> dict[str, Any]:
    conversation, inference = request.conversation, request.inference_options
    parsing, constraint = request.parsing_options, inference.output_constraint
    same = ("max_tokens", "logprobs", "top_logprobs", "seed")
    flags = ("parse_tool_calls", "starts_in_tool_calls", "parse_json_output")
    stage = parsing.thinking_initial_stage
    return {
        "thinking_mode": conversation.thinking_mode,
        "reasoning_effort": conversation.reasoning_effort,
        "tool_choice": conversation.tool_choice,
        "response_format": conversation.response_format,
        **{name: getattr(inference, name) for name in same},
        **{name: getattr(parsing, name) for name in flags},
        "temperature": round(inference.temperature, 6),
        "top_p": round(inference.top_p, 6),
        "output_constraint": constraint and {"kind": constraint.kind, "schema": constraint.schema},
        "stream": request.stream,
        "thinking_initial_stage": next(
            (name for name in STAGES if stage == getattr(released.ThinkingInitialStage, name)),
            None,
        ),
        "stop_sequences": list(parsing.stop_sequences),
    }


def _ours(protocol: Protocol, body: str, options: ConversionOptions) -> Any:
    try:
        request: ConversationRequest = convert(protocol, body, options)
    except RequestError as error:
        return "body" if isinstance(error, BodyError) else "rule", error.what
    prompt = render(request.conversation, request.version)
    return _conversation(request.conversation, prompt) | derived(request)


def _theirs(protocol: Protocol, body: str, options: Any) -> Any:
    try:
        request = REQUESTS[protocol](body).convert(options)
    except released.ConversionError as error:
        return "rule", json.loads(error.body)["error"]["message"]
    except ValueError as error:
        return "body", str(error)
    prompt = ENCODINGS[request.model_version]().render_conversation(request.conversation)
    return _conversation(request.conversation, prompt) | _derived(request)


def _told(found: Any) -> Any:
    """What is compared: of several calls without an output, the released recipe names any."""
    if isinstance(found, tuple) and found[1].startswith("No tool output found"):
        return found[0], "No tool output found"
    return found


def _is_number_for_a_name(found: Any) -> bool:
    """The released recipe takes the number of a kind for its name in some places."""
    return isinstance(found, tuple) and (
        "variant index" in found[1] or ("integer" in found[1] and "variant identifier" in found[1])
    )


@pytest.mark.parametrize("protocol", REQUESTS)
def test_random_requests(protocol):
    """A request in the wild is understood in another way than the released recipe does."""
    rng = random.Random(protocol)
    num_right = 0
    for _ in range(NUM_REQUESTS):
        request = changed(rng, random_request(rng, protocol), rng.choice((0, 0, 0, 1, 2)))
        body = json.dumps(request, ensure_ascii=False)
        our_options, their_options = rng.choice((USUAL, USUAL, REJECTING))
        mine = _ours(protocol, body, our_options)
        theirs = _theirs(protocol, body, their_options)
        if _is_number_for_a_name(mine) or _is_number_for_a_name(theirs):
            continue
        assert _told(mine) == _told(theirs), body
        num_right += isinstance(mine, dict)
    # Else it is errors alone that are compared.
    assert num_right > NUM_REQUESTS / 5
