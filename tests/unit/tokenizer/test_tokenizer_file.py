"""Files that are missing, damaged, or would go wrong without a word."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import pre_tokenizers

from deepinfer.errors import ConfigError
from deepinfer.tokenizer.tokenizer_file import (
    open_tokenizer_json,
    read_role_spellings,
    token_bytes_by_id,
)

LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7847602\n"


def refused(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        open_tokenizer_json(path)
    assert caught.value.where == str(path)
    assert caught.value.hint
    return caught.value


def test_missing_file(tmp_path: Path) -> None:
    """The library's bare Exception, without a file name, instead of an error of ours."""
    assert "missing" in refused(tmp_path / "tokenizer.json").what


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not JSON"),
        (b'{"version": "1.0", "model": {"type": "BPE", "voc', "cut short after 48 characters"),
        (LFS_POINTER.encode(), "git-lfs pointer"),
        (b"[]", "found a JSON list"),
        (b"{}", "Model missing"),
        (b"\xff\xfe", "unreadable"),
    ],
)
def test_damaged_file(tmp_path: Path, content: bytes, reason: str) -> None:
    """A half-copied file gives a trace from inside the library."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    assert reason in refused(path).what


def test_git_lfs_hint(tmp_path: Path) -> None:
    """The most common cause (a clone without git-lfs) is reported as bad JSON."""
    path = tmp_path / "tokenizer.json"
    path.write_text(LFS_POINTER, encoding="utf-8")
    assert "git lfs pull" in refused(path).hint


def _word_level(stored: dict[str, Any]) -> None:
    vocab = stored["model"]["vocab"]
    stored["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": "a"}


def _unknown_merge(stored: dict[str, Any]) -> None:
    stored["model"]["merges"][3] = ["zzz", "yyy"]


def _no_decoder(stored: dict[str, Any]) -> None:
    stored["decoder"] = None


def _gap_before_added(stored: dict[str, Any]) -> None:
    stored["added_tokens"][-1]["id"] = 600


def _shared_id(stored: dict[str, Any]) -> None:
    stored["model"]["vocab"]["the"] = stored["model"]["vocab"]["Ġ"]


def _byte_without_token(stored: dict[str, Any]) -> None:
    stored["model"]["merges"] = []
    vocab = stored["model"]["vocab"]
    stored["model"]["vocab"] = {t: i for t, i in vocab.items() if i < 259} | {
        "¬¬" if t == "¬" else f"<filler {i}>": i for t, i in vocab.items() if t == "¬" or i >= 259
    }
    del stored["model"]["vocab"]["¬"]


def _forgeable(stored: dict[str, Any]) -> None:
    merges = stored["model"]["merges"]
    joined = "".join(merges[-1])
    stored["added_tokens"].append(
        stored["added_tokens"][-1] | {"content": joined, "id": stored["model"]["vocab"][joined]}
    )


def _forgeable_in_old_spelling(stored: dict[str, Any]) -> None:
    _forgeable(stored)
    stored["model"]["merges"] = [" ".join(pair) for pair in stored["model"]["merges"]]


def _forgeable_whole_word(stored: dict[str, Any]) -> None:
    # In the vocabulary, but of no merge: reachable only where whole words are looked up.
    joined = "".join(stored["model"]["merges"].pop())
    stored["added_tokens"].append(
        stored["added_tokens"][-1] | {"content": joined, "id": stored["model"]["vocab"][joined]}
    )
    stored["model"]["ignore_merges"] = True


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_word_level, "found model WordLevel"),
        (_unknown_merge, "`zzz` out of vocabulary"),
        (_no_decoder, "decoder NoneType"),
        (_gap_before_added, "'</think>' is written with id 600, but it reads as 511"),
        (_shared_id, "has it"),
        (_byte_without_token, "no token for byte 0xac"),
        (_forgeable, "out of ordinary text"),
        (_forgeable_in_old_spelling, "out of ordinary text"),
        (_forgeable_whole_word, "out of ordinary text"),
    ],
)
def test_silent_faults(
    damage: Callable[[dict[str, Any]], None],
    reason: str,
    toy_folder: Path,
    edit_json: Callable[..., None],
) -> None:
    """The library renumbers, drops characters, or lets text become a control token (J10)."""
    path = toy_folder / "tokenizer.json"
    open_tokenizer_json(path)
    edit_json(path, damage)
    assert reason in refused(path).what


def test_forgery_is_real(toy_folder: Path, edit_json: Callable[..., None]) -> None:
    """J10: what `_forgeable` builds is a forgery indeed, so the check above guards something."""
    path = toy_folder / "tokenizer.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    joined = "".join(stored["model"]["merges"][-1])
    plain = tokenizers.Tokenizer(tokenizers.Tokenizer.from_file(str(path)).model)
    assert plain.encode(joined).ids == [stored["model"]["vocab"][joined]]


def test_byte_table(toy_folder: Path) -> None:
    """A byte that the table maps to another one: garbled text for a few characters only."""
    raw = open_tokenizer_json(toy_folder / "tokenizer.json")
    table = token_bytes_by_id(raw)
    assert {table[raw.token_to_id(char)] for char in pre_tokenizers.ByteLevel.alphabet()} == {
        bytes([byte]) for byte in range(256)
    }
    for char in map(chr, [*range(0x80), 0xA0, 0xAD, 0xE9, 0x20AC, 0x1F642]):
        ids = raw.encode(char).ids
        assert b"".join(table[i] for i in ids) == char.encode()


def test_role_spellings(tmp_path: Path) -> None:
    """A role written in one of the three known forms is not seen, or a bad one is ignored."""
    path = tmp_path / "tokenizer_config.json"
    assert read_role_spellings(path) == {}
    path.write_text('{"bos_token": "<b>", "eos_token": {"content": "<e>"}, "pad_token": null}')
    assert read_role_spellings(path) == {"bos": "<b>", "eos": "<e>"}
    path.write_text('{"eos_token": ["<e>"]}')
    with pytest.raises(ConfigError, match="expected a string") as caught:
        read_role_spellings(path)
    assert caught.value.where == f"{path}: eos_token"
    path.write_text('{"eos_token": ')
    with pytest.raises(ConfigError, match="not JSON"):
        read_role_spellings(path)


def test_added_token_stands_for_its_spelling(
    toy_folder: Path, edit_json: Callable[..., None]
) -> None:
    """An added token whose letters are all in the byte alphabet is read as bytes."""
    path = toy_folder / "tokenizer.json"

    def rename_last(stored: dict[str, Any]) -> None:
        stored["added_tokens"][-1]["content"] = "«été»"

    edit_json(path, rename_last)
    assert token_bytes_by_id(open_tokenizer_json(path))[-1] == "«été»".encode()
