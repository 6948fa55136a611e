"""Engram's token map against the independent implementation, and its edges."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors

from deepinfer.config.model import read_model_config
from deepinfer.errors import ConfigError
from deepinfer.tokenizer.compress import build_token_map, check_token_map
from deepinfer.tokenizer.tokenizer_file import open_tokenizer_json


def _expected_token_map(folder: Path) -> npt.NDArray[np.int64]:
    """Read without torch, as all of this package runs without it."""
    packed = (folder / "expected.safetensors.xz").read_bytes()
    tensors = dict(safetensors.deserialize(lzma.decompress(packed)))
    stored = tensors["engram/token_map"]
    assert stored["dtype"] == "I64"
    return np.frombuffer(stored["data"], dtype="<i8").reshape(stored["shape"])


@pytest.mark.parametrize("variant", ["a", "b"])
def test_golden_token_map(variant: str, golden_folder: Path) -> None:
    """One id off: other hash multipliers, so other Engram rows for every token of every text."""
    folder = golden_folder / variant
    token_map = build_token_map(folder / "model" / "tokenizer.json")
    assert token_map.dtype == np.int32
    np.testing.assert_array_equal(token_map, _expected_token_map(folder))
    check_token_map(token_map, read_model_config(folder / "model"))


def _spelled(texts: list[str], folder: Path, edit_json: Callable[..., None]) -> list[int]:
    """Compressed ids of `texts`, each added to the toy's vocabulary as one token."""
    path = folder / "tokenizer.json"
    raw = open_tokenizer_json(path)
    first = raw.get_vocab_size()

    def add(stored: dict[str, Any]) -> None:
        form = stored["added_tokens"][-1]
        stored["added_tokens"] += [
            form | {"id": first + place, "content": text} for place, text in enumerate(texts)
        ]

    edit_json(path, add)
    return build_token_map(path)[first:].tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (" STRAẞE", "straße"),
        ("Café ", "cafe"),
        ("ＡＢＣ１", "abc1"),
        ("ﬁNE", "fine"),
        ("Ⅳth", "ivth"),
        ("two \t\r\n words", "Two words"),
        ("\t\t", "   "),
    ],
)
def test_alike(one: str, other: str, toy_folder: Path, edit_json: Callable[..., None]) -> None:
    """A step of the normaliser is missing or comes in another order."""
    ids = _spelled([one, other], toy_folder, edit_json)
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("two words", "twowords"),
        ("\u0301\u0302", "\u0301\u0301\u0301"),  # empty once accents go: the text itself counts
        ("\u2003\u2003", "\u2003\u2003\u2003x"),
        ("straße", "strasse"),  # lower case, not folded
        ("the-", "the_"),
    ],
)
def test_unlike(one: str, other: str, toy_folder: Path, edit_json: Callable[..., None]) -> None:
    """Texts that differ to a reader share an id."""
    ids = _spelled([one, other], toy_folder, edit_json)
    assert ids[0] != ids[1]


def test_byte_keys_on_its_vocabulary_string(toy_folder: Path) -> None:
    """All partial characters would share the key U+FFFD."""
    path = toy_folder / "tokenizer.json"
    raw = open_tokenizer_json(path)
    token_map = build_token_map(path)
    partial = [raw.token_to_id(char) for char in "ÃÄÅæç"]
    assert all(raw.decode([i]) == "\ufffd" for i in partial)
    assert len(set(token_map[partial].tolist())) == len(partial)


def test_ids_by_first_occurrence(toy_folder: Path) -> None:
    """Compressed ids have gaps, or count from elsewhere."""
    token_map = build_token_map(toy_folder / "tokenizer.json")
    firsts = np.unique(token_map, return_index=True)
    np.testing.assert_array_equal(firsts[0], np.arange(len(firsts[0])))
    assert (np.diff(firsts[1]) > 0).all()


def test_holes_share_the_empty_key(toy_folder: Path, edit_json: Callable[..., None]) -> None:
    """A gap in the ids shifts every id behind it, or ends the map too early."""
    path = toy_folder / "tokenizer.json"
    whole = build_token_map(path)

    def move_last_merge(stored: dict[str, Any]) -> None:
        stored["model"]["vocab"]["".join(stored["model"]["merges"][-1])] = 515

    hole = open_tokenizer_json(path).get_vocab_size(with_added_tokens=False) - 1
    edit_json(path, move_last_merge)
    token_map = build_token_map(path)
    assert token_map.shape == (516,)
    np.testing.assert_array_equal(token_map[:hole], whole[:hole])
    holes = [hole, 512, 513, 514]
    assert len(set(token_map[holes].tolist())) == 1
    assert token_map[hole] not in np.delete(token_map, holes)


def test_count_must_match(toy_folder: Path, make_config: Callable[..., Any]) -> None:
    """A tokenizer of another checkpoint: fluent nonsense instead of an error."""
    token_map = build_token_map(toy_folder / "tokenizer.json")
    count = len(np.unique(token_map))
    check_token_map(token_map, make_config(engram_compressed_vocab_size=count))
    with pytest.raises(ConfigError, match=rf"found {count} .*expected .*{count + 1}"):
        check_token_map(token_map, make_config(engram_compressed_vocab_size=count + 1))
