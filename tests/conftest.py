"""Fixtures for every test: the toy checkpoint, the released configuration."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from deepinfer.checkpoint.inventory import inventory
from deepinfer.checkpoint.tiny import write_tiny
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.config.released import RELEASED
from deepinfer.config.released import released_config as read_released
from deepinfer.logs import ROOT
from tests.shards import INDEX, clone, write_sparse

# How many examples those properties have that name no number of their own: of whole engines.
settings.register_profile("sample", max_examples=7)
settings.register_profile("all", max_examples=20)
settings.load_profile("sample")

# One thread: the order of summation, and so every bit, is the same on every machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def untouched_log() -> Iterator[None]:
    """Put our logger back as it was: every command sets it up, for the whole process, and after
    that no later test in it would see a line through `caplog`."""
    logger = logging.getLogger(ROOT)
    before = (logger.level, logger.handlers[:], logger.propagate)
    yield
    logger.level, logger.handlers[:], logger.propagate = before


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy checkpoint with tokenizer, seed 0. Shared: copy it before changing it."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_config(tiny_dir: Path) -> ModelConfig:
    """The configuration of `tiny_dir`."""
    return read_model_config(tiny_dir)


@pytest.fixture
def tiny_copy(tiny_dir: Path, tmp_path: Path) -> Path:
    """A copy of the toy checkpoint that the test may damage."""
    return clone(tiny_dir, tmp_path)


@pytest.fixture
def released_json() -> dict[str, Any]:
    """The released config.json as parsed JSON, a fresh copy for each test."""
    content: dict[str, Any] = json.loads(RELEASED.read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="session")
def released_config() -> ModelConfig:
    """The released configuration."""
    return read_released()


@pytest.fixture(scope="session")
def released_dir(tmp_path_factory: pytest.TempPathFactory, released_config: ModelConfig) -> Path:
    """A checkpoint of the released size in eight files, all of zeros that take no space."""
    folder = tmp_path_factory.mktemp("released")
    specs = list(inventory(released_config).values())
    weight_map: dict[str, str] = {}
    for i in range(8):
        file = f"model-{i}.safetensors"
        write_sparse(folder / file, specs[i::8])
        weight_map.update((spec.name, file) for spec in specs[i::8])
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_bytes(RELEASED.read_bytes())
    return folder
