"""`so_args`: each wrong field is refused by its name, before anything is compiled."""

from typing import Any

import pytest

from deepinfer.errors import RequestError
from deepinfer.so_args import SoArgs, read_so_args

GOOD = {"schema_type": "json", "schema": "{}"}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("json", "so_args"),
        ([GOOD], "so_args"),
        ({}, "so_args.schema_type"),
        ({"schema_type": "xml", "schema": "x"}, "so_args.schema_type"),
        ({"schema_type": ["json"], "schema": "x"}, "so_args.schema_type"),
        ({"schema_type": "json"}, "so_args.schema"),
        ({"schema_type": "regex", "schema": {"a": 1}}, "so_args.schema"),
        ({"schema_type": "ebnf", "schema": ""}, "so_args.schema"),
        ({"schema_type": "json", "schema": {"a": {1, 2}}}, "so_args.schema"),
        ({"schema_type": "json_object", "schema": "{}"}, "so_args.schema"),
        (GOOD | {"serialized": "x"}, "so_args.serialized"),
        (GOOD | {"bound_token_ids": [1]}, "so_args.bound_token_ids"),
        (GOOD | {"bound_token_id": 5}, "so_args.bound_token_id"),
        (GOOD | {"bound_token_id": "5", "trigger_token_ids": [1]}, "so_args.bound_token_id"),
        (GOOD | {"trigger_token_ids": 5}, "so_args.trigger_token_ids"),
        (GOOD | {"trigger_token_ids": [-1]}, "so_args.trigger_token_ids"),
        (GOOD | {"trigger_token_ids": "12"}, "so_args.trigger_token_ids"),
        (GOOD | {"whitespace": "lots"}, "so_args.whitespace"),
    ],
)
def test_wrong_fields(given: Any, field: str) -> None:
    """A misspelt field is dropped, and the output obeys nothing."""
    with pytest.raises(RequestError) as caught:
        read_so_args(given)
    assert caught.value.field == field
    assert caught.value.hint


def test_what_is_read() -> None:
    """A schema that is given as a value, or the trigger, is lost on the way."""
    read = read_so_args(GOOD | {"schema": {"type": "null"}, "trigger_token_ids": [3, 4]})
    assert read == SoArgs("json", '{"type": "null"}', (3, 4))
    assert read_so_args(read) is read
    assert read_so_args(None) is None
    assert read_so_args({"schema_type": "json_object"}) == SoArgs("json_object", "")
