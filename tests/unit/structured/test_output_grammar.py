"""so_args to a grammar's text: what every kind of schema shares."""

import json

import pytest

from deepinfer.errors import RequestError
from deepinfer.so_args import SoArgs
from deepinfer.structured.output_grammar import output_grammar


@pytest.mark.parametrize(
    ("kind", "schema"), [("json", '{"const": "\U0010ffff"}'), ("regex", "\U00100000+")]
)
def test_private_characters_are_refused_by_name(kind: str, schema: str) -> None:
    """A character that stands for a control token here is refused as a rule nobody wrote."""
    with pytest.raises(RequestError) as caught:
        output_grammar(SoArgs(kind, schema))  # type: ignore[arg-type]
    assert "plane 16" in caught.value.what


def test_other_choices_stay() -> None:
    """One value that cannot be written takes the others with it."""
    text = output_grammar(SoArgs("json", json.dumps({"enum": ["\U0010ffff", "1"]})))
    assert r'"\u00221\u0022"' in text
