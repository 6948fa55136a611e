"""A toy tokenizer, a stand-in for the few facts of config.json that a tokenizer reads, goldens."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import settings

from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.tokenizer.toy import write_toy_tokenizer

VOCAB_SIZE = 512

# The same examples in every run, and no time limit that a busy machine could break.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    return Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="session")
def make_config() -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        facts = {
            "vocab_size": VOCAB_SIZE,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "all_eos_token_ids": (),
            "pad_token_id": 2,
            "tokenizer_compatibility": "release",
            "engram_compressed_vocab_size": 440,
        }
        assert changes.keys() <= facts.keys()
        return SimpleNamespace(**(facts | changes))

    return make


@pytest.fixture
def toy_folder(tmp_path: Path) -> Path:
    """A fresh copy that a test may damage."""
    write_toy_tokenizer(tmp_path / "toy", VOCAB_SIZE)
    return tmp_path / "toy"


@pytest.fixture(scope="session")
def shared_toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_toy_tokenizer(folder, VOCAB_SIZE)
    return folder


@pytest.fixture(scope="session")
def toy(shared_toy_folder: Path, make_config: Callable[..., Any]) -> Tokenizer:
    return load_tokenizer(shared_toy_folder, make_config())


@pytest.fixture(scope="session")
def toy_of_library(shared_toy_folder: Path) -> tokenizers.Tokenizer:
    """The same file, read by the library alone."""
    return tokenizers.Tokenizer.from_file(str(shared_toy_folder / "tokenizer.json"))


@pytest.fixture
def edit_json() -> Callable[[Path, Callable[[dict[str, Any]], None]], None]:
    def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
        stored = json.loads(path.read_text(encoding="utf-8"))
        change(stored)
        path.write_text(json.dumps(stored), encoding="utf-8")

    return edit
