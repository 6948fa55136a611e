"""The recorded outputs: every event, when it comes, and the whole answer, however it was cut."""

import json
import re
from random import Random
from typing import Any

import pytest

from deepinfer.config.model import ModelConfig
from deepinfer.recipe.protocol_event import to_json
from deepinfer.tokenizer.tokenizer import Tokenizer
from tests.golden.recipe_cases import cases
from tests.golden.v4_tokenizer import v4_tokenizer
from tests.unit.recipe.replay import Replay, replay, request_of, texts, token_chunks

PARSE = cases("parse")
NUM_RANDOM_CUTS = 5


def by_id(case: dict[str, Any]) -> str:
    return str(case["id"])


def written(case: dict[str, Any], cut: list[str] | None = None) -> Replay:
    signature = case.get("signature")
    return replay(request_of(case), texts(case, cut), signature=signature)


def as_recorded(made: Replay) -> list[str]:
    """The events, as their JSON is recorded."""
    return [json.dumps({"event": event.name, "data": event.data}) for event in made.events]


def without_counts(case: dict[str, Any], answer: Any) -> Any:
    """An answer without what depends on how it was cut.

    That is the count of tokens, which the pushes carry, and the spaces that stand for the words
    around JSON: there is one for each piece of them.
    """
    kept = {key: value for key, value in answer.items() if key != "usage"}
    text = json.dumps(kept)
    is_json = "json_object" in json.dumps(case["request"])
    return re.sub(" +", " ", text) if is_json else text


@pytest.mark.parametrize("case", PARSE, ids=by_id)
def test_events_and_answer(case: dict[str, Any]) -> None:
    """A client of the released service reads this one, and finds another event, or at another
    time, or another key in another order.
    """
    made = written(case)
    assert as_recorded(made) == [json.dumps(event) for event in case["events"]]
    assert [len(push) for push in made.pushes] == case["events_per_push"]
    assert json.dumps(made.answer.data) == json.dumps(case["response"])
    assert json.loads(to_json(made.answer.data)) == case["response"]


@pytest.fixture(scope="module")
def tokenizer(released_config: ModelConfig) -> Tokenizer:
    return v4_tokenizer(released_config)


@pytest.mark.parametrize("case", cases("parse_tokens"), ids=by_id)
def test_events_and_answer_of_tokens(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    """A control token is taken for text, or text for a control token, or a character is torn."""
    made = replay(request_of(case), token_chunks(case), tokenizer=tokenizer)
    assert as_recorded(made) == [json.dumps(event) for event in case["events"]]
    assert [len(push) for push in made.pushes] == case["events_per_push"]
    assert json.dumps(made.answer.data) == json.dumps(case["response"])


def _cuts(text: str, random: Random) -> list[list[str]]:
    """The text cut in two at every place, into characters, and at random."""
    cuts = [[text[:i], text[i:]] for i in range(1, len(text))]
    cuts.append(list(text))
    for _ in range(NUM_RANDOM_CUTS):
        ends = sorted(random.randrange(len(text) + 1) for _ in range(random.randrange(2, 9)))
        cuts.append([text[i:j] for i, j in zip([0, *ends], [*ends, len(text)], strict=True)])
    return cuts


@pytest.mark.parametrize("case", PARSE, ids=by_id)
def test_answer_at_every_cut(case: dict[str, Any]) -> None:
    """What is read depends on where the stream happened to be cut."""
    expected = without_counts(case, case["response"])
    for cut in _cuts("".join(case["model_output_chunks"]), Random(0)):
        assert without_counts(case, written(case, cut).answer.data) == expected, cut
