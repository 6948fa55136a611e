"""The toy tokenizer: exact size, released layout, the same bytes every time."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deepinfer.errors import ConfigError
from deepinfer.tokenizer.tokenizer import load_tokenizer
from deepinfer.tokenizer.toy import (
    CONTROL_TOKENS,
    IMAGE,
    MIN_VOCAB_SIZE,
    NOISE,
    toy_control_id,
    write_toy_tokenizer,
)

WRITE = """
import sys
from pathlib import Path
from deepinfer.tokenizer.toy import write_toy_tokenizer
write_toy_tokenizer(Path(sys.argv[1]), 700)
"""


@pytest.mark.parametrize("vocab_size", [MIN_VOCAB_SIZE, 400, 512, 1024, 2000])
def test_size_and_layout(vocab_size: int, tmp_path: Path, make_config: Callable[..., Any]) -> None:
    """A toy checkpoint has embedding rows without a token, or control tokens in other places."""
    write_toy_tokenizer(tmp_path, vocab_size)
    tokenizer = load_tokenizer(tmp_path, make_config(vocab_size=vocab_size))
    assert tokenizer.vocab_len == vocab_size
    assert all(tokenizer.token_bytes(i) for i in range(vocab_size))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    last = range(vocab_size - len(CONTROL_TOKENS), vocab_size)
    assert [tokenizer.control_ids[name] for name, _ in CONTROL_TOKENS] == list(last)
    for name in (NOISE, IMAGE):
        assert toy_control_id(name, vocab_size) == tokenizer.control_ids[name]
    special = {name for name, flag in CONTROL_TOKENS if flag}
    assert special == {
        n for n, _ in CONTROL_TOKENS if tokenizer.is_special(tokenizer.control_ids[n])
    }


def test_words_are_learned(tmp_path: Path, make_config: Callable[..., Any]) -> None:
    """No merge works, so that the toy never exercises tokens of several bytes or characters."""
    write_toy_tokenizer(tmp_path, 512)
    tokenizer = load_tokenizer(tmp_path, make_config())
    assert len(tokenizer.encode(" the light", add_bos=False)) < len(" the light") / 2
    cut = [tokenizer.token_bytes(i) for i in range(259, 512)]
    assert any(len(b) > 1 and "\ufffd" in b.decode(errors="replace") for b in cut)


def test_reproducible_in_other_processes(tmp_path: Path) -> None:
    """Hash seeds or threads leak into the merges: every run has other ids."""
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", WRITE, str(tmp_path / seed)]
        subprocess.run(command, env=environment, check=True, timeout=60)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_too_small(tmp_path: Path) -> None:
    """A vocabulary without all bytes or control tokens is written all the same."""
    with pytest.raises(ConfigError, match=f"at least {MIN_VOCAB_SIZE}"):
        write_toy_tokenizer(tmp_path, MIN_VOCAB_SIZE - 1)
    assert not list(tmp_path.iterdir())
