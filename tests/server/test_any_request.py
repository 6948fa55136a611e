"""Requests that /openapi.json allows, drawn at random, find no fault of the server."""

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.server.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.sample]
POSTS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/messages/count_tokens", "/v1/tokenize", "/v1/detokenize"),
)
NUM_EXAMPLES = 25


@pytest.mark.parametrize("path", POSTS)
def test_no_fault(demo_server: ServerProcess, path: str) -> None:
    """A body that the document allows, or one with a mistake in it, is answered with a 500, with no
    JSON, or with an error without a message; or the server does not live on."""
    http = httpx.Client(base_url=demo_server.url, timeout=60)
    schema = schemathesis.openapi.from_dict(http.get("/openapi.json").json())
    operation = schema[path]["POST"]
    modes = schemathesis.GenerationMode
    right = operation.as_strategy(generation_mode=modes.POSITIVE)
    wrong = operation.as_strategy(generation_mode=modes.NEGATIVE)

    @settings(
        max_examples=NUM_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(right, wrong))
    def check(case: schemathesis.Case) -> None:
        data = as_json(limited(path, case.body))
        if data is None:
            return
        answer = http.post(path, content=data, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 404, 413), answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]

    check()
    assert http.get("/ready").status_code == 200


def limited(path: str, body: Any) -> Any:
    """The body with few tokens to generate; more of them would say nothing more."""
    if not isinstance(body, dict) or path.endswith("tokenize"):
        return body
    body = {name: value for name, value in body.items() if name != "model"}
    few = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 3}
    names = (*few, "max_completion_tokens", "n")
    given = {name: body[name] for name in names if name in body}
    small = {k: min(v, 3) if isinstance(v, int) else v for k, v in given.items()}
    return {**body, **few, **small}


def as_json(body: Any) -> bytes | None:
    """The bytes of a drawn body, None for what no client would send as JSON."""
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError):
        return None
