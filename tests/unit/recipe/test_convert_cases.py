"""The recorded requests: what each becomes, or why it is refused."""

import json
from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.recipe.conversation import ImageSource
from deepinfer.recipe.convert import convert, resolve_max_tokens
from deepinfer.recipe.errors import BodyError, ConversionError
from deepinfer.recipe.render import render
from deepinfer.recipe.request import ConversationRequest, ConversionOptions
from tests.golden.recipe_cases import cases

# The names that the records have for options and their values.
OPTIONS = {
    "default_thinking_mode": "default_thinking",
    "reasoning_content_behavior": "missing_reasoning",
}
VALUES = {"Reject": "reject", "Drop": "drop", "FillEmpty": "fill_empty"}


def options_of(case: dict[str, Any]) -> ConversionOptions:
    return ConversionOptions(
        **{
            OPTIONS.get(name, name): VALUES.get(value, value)
            for name, value in case.get("options", {}).items()
        }
    )


def converted(case: dict[str, Any]) -> ConversationRequest:
    # As text: the cases are about the order of fields, too, and about what is no JSON.
    body = case["raw_body"] if "raw_body" in case else json.dumps(case["request"])
    return convert(case["protocol"], body, options_of(case))


def derived(request: ConversationRequest) -> dict[str, Any]:
    conversation, inference = request.conversation, request.inference
    parsing, constraint = request.parsing, inference.output_constraint
    return {
        "thinking_mode": conversation.thinking,
        "reasoning_effort": conversation.effort,
        "tool_choice": conversation.tool_choice,
        "response_format": conversation.response_format,
        "max_tokens": inference.max_tokens,
        "temperature": round(inference.temperature, 6),
        "top_p": round(inference.top_p, 6),
        "logprobs": inference.logprobs,
        "top_logprobs": inference.top_logprobs,
        "seed": inference.seed,
        "output_constraint": constraint and {"kind": constraint.kind, "schema": constraint.schema},
        "stream": request.stream,
        "parse_tool_calls": parsing.parse_tool_calls,
        "starts_in_tool_calls": parsing.starts_in_tool_calls,
        "parse_json_output": parsing.parse_json_output,
        "thinking_initial_stage": parsing.thinking_stage,
        "stop_sequences": list(parsing.stop_sequences),
    }


def shown(image: ImageSource) -> dict[str, Any]:
    kind = "url" if image.data_url is None else "data_url"
    reference = image.data_url or image.url
    return {"kind": kind, "detail": image.detail, "path": image.path, "ref": reference}


def by_id(case: dict[str, Any]) -> str:
    return case["id"]


@pytest.mark.parametrize("case", cases("prompt"), ids=by_id)
def test_prompt(case):
    """A request reaches the model as another prompt, or is sampled or read in another way, than
    the model was trained for."""
    request = converted(case)
    assert request.version == case["version"]
    assert derived(request) == case["derived"]
    prompt = render(request.conversation, request.version)
    assert prompt.prompt == case["prompt"]
    assert [shown(image) for image in prompt.image_sources] == case.get("images", [])


@pytest.mark.parametrize("case", cases("error"), ids=by_id)
def test_error(case):
    """A bad request is taken, or the client is told something else than it was told before."""
    with pytest.raises(RequestError) as caught:
        converted(case)
    error, wanted = caught.value, case["error"]
    if wanted["class"] == "ValueError":
        assert isinstance(error, BodyError)
        assert isinstance(error, ValueError)
        assert error.what == wanted["message"]
    else:
        assert isinstance(error, ConversionError)
        assert error.status_code == wanted["status_code"]
        assert json.loads(error.body) == wanted["body"]


@pytest.mark.parametrize("case", cases("resolve_max_tokens"), ids=by_id)
def test_resolve_max_tokens(case):
    """An answer gets more room than the context has, or less than was promised."""
    request = converted(case)
    limits = (case["prompt_tokens"], case["context_limit"])
    if "error" not in case:
        assert resolve_max_tokens(request, *limits) == case["result"]
        return
    with pytest.raises(ConversionError) as caught:
        resolve_max_tokens(request, *limits)
    assert json.loads(caught.value.body) == case["error"]["body"]


@pytest.mark.parametrize("case", cases("parse", "responses"), ids=by_id)
def test_echo(case):
    """A Responses answer says that other settings were asked for than were."""
    echo = converted(case).echo
    repeated = (
        *("instructions", "max_output_tokens", "temperature", "top_p", "top_logprobs"),
        *("reasoning", "text", "tool_choice", "tools", "user"),
    )
    for name in repeated:
        assert getattr(echo, name) == case["response"][name], name
