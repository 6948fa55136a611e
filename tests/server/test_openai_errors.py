"""Mistakes and cancels of users of the `openai` client, against a server of the demo model."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.server.openai_asks import PLAIN, chat
from tests.server.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.sample]


@pytest.fixture(scope="module")
def client(demo_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


ERRORS: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = [
    ({"model": "gpt-5"}, openai.NotFoundError, "model"),
    ({"messages": []}, openai.BadRequestError, None),
    ({"temperature": 9}, openai.BadRequestError, "temperature"),
    ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
    ({"max_tokens": 10**6}, openai.BadRequestError, "max_tokens"),
    ({"stop": [""]}, openai.BadRequestError, None),
    ({"n": 0}, openai.BadRequestError, "n"),
    ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
    ({"logit_bias": {"99999": 1}}, openai.BadRequestError, "logit_bias"),
    ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
    ({"extra_body": {"best_of": 3}}, openai.BadRequestError, "best_of"),
    ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature"),
    ({"extra_body": {"top_k": "many"}}, openai.BadRequestError, "top_k"),
    ({"response_format": {"type": "regex", "regex": "("}}, openai.BadRequestError, None),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
                        }
                    ],
                }
            ]
        },
        openai.BadRequestError,
        "messages",
    ),
]


@pytest.mark.parametrize(("fields", "kind", "param"), ERRORS, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("stream", [False, True])
def test_errors(
    client: openai.OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str | None,
    stream: bool,
) -> None:
    """A mistake is answered with a 500, with a class that programs do not expect, or in a stream
    that looks like success; or its field is not named."""
    with pytest.raises(kind) as caught:
        chat(client, **fields, stream=stream)
    assert type(caught.value) is kind
    assert param is None or caught.value.param == param
    assert caught.value.request_id


def test_too_long_prompt(client: openai.OpenAI) -> None:
    """I03: a prompt beyond the limit is cut, or ends the server, instead of a 400 with numbers."""
    limit = client.models.retrieve("demo").model_dump()["max_model_len"]
    for num_words in (limit, 10 * limit):
        long = [{"role": "user", "content": "boat " * num_words}]
        with pytest.raises(openai.BadRequestError, match=str(limit)):
            chat(client, messages=long)
        with pytest.raises(openai.BadRequestError, match=str(limit)):
            client.completions.create(model="demo", prompt="boat " * num_words)
    assert chat(client).choices[0].message.content == "85"


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], [[], [1]], [3072], [-1], [1.5]])
def test_empty_and_impossible_prompts(client: openai.OpenAI, prompt: Any) -> None:
    """I01: a prompt without tokens, or with ones that do not exist, hurts others or is a 500."""
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="demo", prompt=prompt, max_tokens=2)
    assert chat(client).choices[0].message.content == "85"


def test_cancel_in_mid_stream(client: openai.OpenAI, demo_server: ServerProcess) -> None:
    """A client that leaves keeps the engine busy for nobody."""
    fields = {"max_tokens": 4000, "extra_body": {"ignore_eos": True, **PLAIN}, "stream": True}
    stream = chat(client, **fields)
    next(iter(stream))
    stream.close()
    assert running(client, demo_server) == 0


def running(client: openai.OpenAI, server: ServerProcess) -> int:
    """Requests that the engine has, once it says nothing new for a moment."""
    left = -1
    for _ in range(50):
        left = httpx.get(f"{server.url}/live").json()["running"]
        if left == 0:
            break
        time.sleep(0.1)
    return left
