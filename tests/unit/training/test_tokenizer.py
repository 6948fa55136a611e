"""The demo model's vocabulary: it fits, it is of use, and training can teach all of it."""

import json
import re
from pathlib import Path
from random import Random

import pytest

from deepinfer.config.model import parse_model_config
from deepinfer.tokenizer.compress import build_token_map
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.tokenizer.toy import CONTROL_TOKENS
from deepinfer.tools.eval_examples import of_split, split_of, word_key
from deepinfer.tools.eval_words import ADJECTIVES, CITIES, NAMES, NOUNS
from training.config import demo_config
from training.data.mix import FACTS, TASKS, letter_pieces, tasks_for
from training.data.render import document_of
from training.tokenizer import VOCAB_SIZE, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder, parse_model_config(demo_config(folder)))


def test_vocabulary_fits_the_model(folder: Path, tokenizer: Tokenizer) -> None:
    """config.json and tokenizer.json disagree, and the model cannot be loaded."""
    config = parse_model_config(demo_config(folder))
    assert tokenizer.vocab_len == config.vocab_size == VOCAB_SIZE
    ids = [tokenizer.control_ids[spelling] for spelling, _ in CONTROL_TOKENS]
    assert ids == list(range(VOCAB_SIZE - len(ids), VOCAB_SIZE))
    assert int(build_token_map(folder / "tokenizer.json").max()) + 1 == (
        config.engram_compressed_vocab_size
    )


def test_vocabulary_is_of_use(folder: Path, tokenizer: Tokenizer) -> None:
    """Numbers are no digits; text or markup costs a token a letter."""
    digits = tokenizer.encode("4711", add_bos=False)
    assert [tokenizer.token_bytes(i) for i in digits] == [b"4", b"7", b"1", b"1"]
    text = "It is a truth universally acknowledged, that a single man must be in want of a wife."
    assert len(tokenizer.encode(text, add_bos=False)) < len(text) / 3
    call = TASKS["call"].make(Random(0), "held_out", 1)
    assert len(document_of(call, tokenizer).token_ids) < 550
    stored = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert not [token for token in stored if "DSML" in token or "User" in token]


def test_no_token_is_a_held_out_word(tokenizer: Tokenizer) -> None:
    """A token that no copy in training has is what evaluation's copies are made of."""
    spelled = {
        tokenizer.token_bytes(i).decode("utf-8", errors="replace").strip().lower()
        for i in range(VOCAB_SIZE)
    }
    for words in (NOUNS, ADJECTIVES, NAMES, CITIES):
        for word in of_split(words, "held_out"):
            assert word.lower() not in spelled
            for text in (word, f" {word}", word.upper()):
                token_ids = tokenizer.encode(text, add_bos=False)
                assert len(token_ids) > 1
                assert tokenizer.decode(token_ids) == text


def test_same_data_same_vocabulary(folder: Path, tmp_path: Path) -> None:
    """Rows that were made with the files of one run are noise to a model with those of another."""
    write_tokenizer(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_every_word_token_is_copied(tokenizer: Tokenizer) -> None:
    """Training's copies leave out tokens, or contain words that are held out."""
    task, rng, copied = tasks_for(tokenizer, 512)["copy"], Random(0), set[int]()
    for _ in range(1200):
        example = task.draw(rng, "train")
        words = example.answer.content.split()
        assert all(split_of(word_key(word)) == "train" for word in words)
        copied.update(tokenizer.encode(example.answer.content, add_bos=False))
    wanted = {
        token_id
        for token_id in range(VOCAB_SIZE)
        if (text := tokenizer.token_bytes(token_id).decode("utf-8", errors="replace"))
        and text.removeprefix(" ").isalpha()
    }
    assert len(wanted) > len(letter_pieces(tokenizer)) > 2000
    assert len(wanted - copied) < 0.02 * len(wanted)


@pytest.mark.parametrize("longest", [512, 2048])
def test_facts_fit(longest: int, tokenizer: Tokenizer) -> None:
    """Most drawn documents are too long for a row, and long texts are never seen."""
    task, rng = tasks_for(tokenizer, longest)[FACTS], Random(0)
    examples = [task.draw(rng, "train") for _ in range(200)]
    lengths = [len(document_of(example, tokenizer).token_ids) for example in examples]
    assert sum(length > longest for length in lengths) <= 0.1 * len(lengths)
    assert max(lengths) > 0.9 * longest
    facts = [len(example.keys) for example in examples]
    texts = [str(example.messages[0]["content"]) for example in examples]
    per_fact = [len(re.split(r"[.?] ", text)) / num for text, num in zip(texts, facts, strict=True)]
    assert min(per_fact) < 3 and (longest < 1000 or max(per_fact) > 8)
    asked = [
        [str(m["content"]).split("\n")[-1] for m in example.messages if m["role"] == "user"]
        for example in examples
    ]
    assert 7 <= max(map(len, asked)) <= 10
    assert all(len(set(questions)) == len(questions) for questions in asked)
