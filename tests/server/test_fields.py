"""What is said of every field holds, in the table, in the documents and at the door."""

import re
from typing import Any, get_args

import pytest

from deepinfer.server.errors import ApiError
from deepinfer.server.fields import TABLES, Api, FieldUse, check_fields
from deepinfer.server.openapi_chat import CHAT, COMPLETIONS
from deepinfer.server.openapi_messages import MESSAGES, RESPONSES
from tests.architecture.tree import ROOT

APIS = get_args(Api)
SCHEMAS = {"chat": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
TITLES = {
    "chat": "Chat Completions",
    "completions": "Completions",
    "responses": "Responses",
    "messages": "Messages",
}


def row(name: str, use: FieldUse) -> str:
    """The line of a field."""
    allowed = ", ".join(str(one) for one in use.allowed)
    note = use.note + (f"; allowed: {allowed}" if allowed else "")
    return f"| {name} | {use.use} | {note} |".replace("  ", " ")


def table(api: Any) -> str:
    """The part of docs/server.md about an API."""
    rows = [row(name, use) for name, use in sorted(TABLES[api].items())]
    return "\n".join([f"### {TITLES[api]}", "", "| field | use | |", "|---|---|---|", *rows])


@pytest.mark.parametrize("api", APIS)
def test_documents_have_every_field(api: Any) -> None:
    """A field is treated otherwise than the documents say."""
    assert table(api) + "\n" in (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("api", APIS)
def test_the_api_document_has_only_these(api: Any) -> None:
    """/openapi.json shows a field that is refused, or hides one that works."""
    known = {name for name, use in TABLES[api].items() if use.use != "refused"}
    honoured = {name for name, use in TABLES[api].items() if use.use == "honoured"}
    assert honoured <= set(SCHEMAS[api]["properties"]) <= known


@pytest.mark.parametrize("api", APIS)
def test_at_the_door(api: Any) -> None:
    """A field that is not honoured passes without a word, or the error does not name it."""
    for name, use in TABLES[api].items():
        assert check_fields(api, {name: None}) == {}
        if use.use == "refused":
            with pytest.raises(ApiError, match=re.escape(f"'{name}'")) as caught:
                check_fields(api, {name: "something"})
            assert (caught.value.status, caught.value.param) == (400, name)
            for value in use.allowed:
                assert check_fields(api, {name: value}) == {}
        else:
            kept = {name: 7} if use.use == "honoured" else {}
            assert check_fields(api, {name: 7}) == kept
    with pytest.raises(ApiError, match="'modle'"):
        check_fields(api, {"modle": "x"})
