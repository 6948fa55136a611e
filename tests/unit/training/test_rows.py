"""Examples as tokens and rows: what LLM.chat would show, and nothing lost."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from deepinfer.config.model import ModelConfig
from deepinfer.front.chat import chat_output, new_answers, prepare_chat
from deepinfer.outputs import RequestOutput
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.tools.eval_judge import has_right_values, is_right
from training.data.mix import TASKS, Mix
from training.data.render import Document, document_of, text_document
from training.data.rows import (
    Rows,
    batches,
    draw_rows,
    draw_rows_in_parallel,
    load,
    pack,
    save,
)

# Short documents alone: the toy's vocabulary makes a call's prompt a thousand tokens.
SHORT = {"sum": 3, "copy": 1, "talk": 1, "thought_sum": 1, "text": 1}


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path, tiny_config: ModelConfig) -> Tokenizer:
    return load_tokenizer(tiny_dir, tiny_config)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_prompt_is_that_of_chat(name: str, tokenizer: Tokenizer) -> None:
    """A model is trained on other prompts than its users' programs write."""
    rng = Random(name)
    for _ in range(5):
        example = TASKS[name].draw(rng, "train", 0.2)
        chat = prepare_chat(example.messages, None, tokenizer, 10**6, **example.options)
        token_ids = document_of(example, tokenizer).token_ids
        assert token_ids[: len(chat.prompt_ids)] == chat.prompt_ids


@pytest.mark.parametrize("name", sorted(TASKS))
def test_answer_reads_back(name: str, tokenizer: Tokenizer) -> None:
    """What a model learns to say is not what the parser of answers understands."""
    rng = Random(name)
    for _ in range(5):
        example = TASKS[name].draw(rng, "train", 0.2)
        chat = prepare_chat(example.messages, None, tokenizer, 10**6, **example.options)
        document = document_of(example, tokenizer)
        *said, end = document.token_ids[len(chat.prompt_ids) :]
        assert end == tokenizer.eos_id
        (answer,) = new_answers(chat, tokenizer)
        for token_id in said:
            answer.read(token_id, None)
        answer.end("stop")
        message = chat_output(chat, [answer], RequestOutput(None, [], [])).message
        assert is_right(example, message)
        assert message.reasoning_content == example.answer.thoughts
        assert example.judge != "json" or has_right_values(example, message)


@pytest.mark.parametrize("name", ["sum", "call", "talk", "thought_sum", "tool_result"])
def test_targets_are_what_the_assistant_says(name: str, tokenizer: Tokenizer) -> None:
    """A model learns to speak as its user, or does not learn when to stop."""
    example = TASKS[name].draw(Random(7), "train", 1.0)
    document = document_of(example, tokenizer)
    targets = [i for i, wanted in zip(*document, strict=True) if wanted]
    said = tokenizer.decode(targets).split("<｜end▁of▁sentence｜>")
    assert said.pop() == ""
    turns = [m for m in example.messages if m["role"] == "assistant"]
    assert len(said) == len(turns) + 1
    for turn, text in zip(turns, said, strict=False):
        assert text == turn["content"] or "invoke" in text
    assert said[-1].endswith(example.answer.content)
    assert ("</think>" in said[-1]) == (example.answer.thoughts is not None)


def test_text_is_cut_and_learned(tokenizer: Tokenizer) -> None:
    """Plain text is longer than a row, or its tokens are not learned."""
    document = text_document("It is a truth. " * 40, tokenizer, 32)
    assert document.token_ids[0] == tokenizer.bos_id
    assert (len(document.token_ids), sum(document.is_target)) == (32, 31)


def documents(num: int, longest: int) -> list[Document]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, longest + 1, num)
    return [
        Document([0, *[3 + i] * (n - 1)], [False] + [True] * (n - 1))
        for i, n in enumerate(lengths.tolist())
    ]


def test_packing_loses_nothing() -> None:
    """A document is cut, doubled, or left behind in a row that never got full."""
    given = documents(500, 40)
    rows = list(pack(given, 40, pad_id=2))
    found: list[list[int]] = []
    for row in rows:
        for token_id, target in zip(row.token_ids[0].tolist(), row.is_target[0], strict=True):
            assert target == (token_id > 2)
            if token_id == 0:
                found.append([])
            if token_id != 2:
                found[-1].append(token_id)
    assert sorted(found) == sorted(document.token_ids for document in given)


def test_rows_are_full() -> None:
    """Half of what a machine computes is padding."""
    rows = list(pack(documents(3000, 40), 100, pad_id=2))
    assert np.mean([(row.token_ids == 2).mean() for row in rows[:-64]]) < 0.02


def test_long_document_is_refused() -> None:
    """A document longer than a row is cut without a word."""
    with pytest.raises(ValueError, match="41 tokens in rows of 40"):
        list(pack([Document([0] * 41, [True] * 41)], 40, pad_id=2))


def test_name_decides_rows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A run that is taken up again sees other rows, or two processes draw the same."""
    mix = Mix(tokenizer, 256, level=0.1, weights=SHORT)
    first, again, other = (draw_rows(mix, name, 3) for name in ("a", "a", "b"))
    assert np.array_equal(first.token_ids, again.token_ids)
    assert not np.array_equal(first.token_ids, other.token_ids)
    save(tmp_path / "rows.npz", first)
    for kept, given in zip(load(tmp_path / "rows.npz"), first, strict=True):
        assert np.array_equal(kept, given)


@pytest.mark.slow
def test_processes_do_not_matter(tokenizer: Tokenizer) -> None:
    """More cores draw other data."""
    mix = Mix(tokenizer, 128, level=0.1, weights={"sum": 1})
    one, two = (draw_rows_in_parallel(mix, "x", 300, num) for num in (1, 2))
    assert np.array_equal(one.token_ids, two.token_ids)
    assert len(np.unique(one.token_ids, axis=0)) == 300


def test_batches_have_every_row() -> None:
    """A row is left out or comes twice in a pass."""
    rows = Rows(np.arange(12, dtype=np.uint16)[:, None], np.ones((12, 1), np.bool_))
    first, again, other = ([*batches(rows, name, 4)] for name in ("a", "a", "b"))
    assert sorted(np.concatenate([batch.token_ids for batch in first])[:, 0].tolist()) == [
        *range(12)
    ]
    same = [np.array_equal(a.token_ids, b.token_ids) for a, b in zip(first, again, strict=True)]
    assert all(same)
    assert not np.array_equal(first[0].token_ids, other[0].token_ids)
