"""The toy checkpoint, open, and what the laws run on it."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from deepinfer.config.model import ModelConfig
from deepinfer.model.network import Network
from deepinfer.oracle.model import Oracle
from deepinfer.outputs import RequestOutput
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.laws.engines import Alone, run_jobs
from tests.laws.networks import Source, open_source
from tests.laws.test_engine import REPERTOIRE, engine_of


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> Source:
    """The toy checkpoint: small window and top-k, every kind of layer."""
    return open_source(tiny_dir)


@pytest.fixture(scope="session")
def tiny_networks(tiny: Source) -> dict[str, Network]:
    """Its networks as they are used, by dtype."""
    return {mode: tiny.network(mode) for mode in ("fp32", "bf16")}


@pytest.fixture(scope="session")
def tokenizer(tiny_dir: Path, tiny_config: ModelConfig) -> Tokenizer:
    """Its tokenizer."""
    return load_tokenizer(tiny_dir, tiny_config)


@pytest.fixture(scope="session")
def alone(tiny_networks: dict[str, Network], tokenizer: Tokenizer) -> Alone:
    """Step after step, without drafts."""

    @cache
    def run(mode: str, number: int) -> RequestOutput:
        return run_jobs(engine_of(tiny_networks, mode), tokenizer, [REPERTOIRE[number]])[0]

    return run


@pytest.fixture(scope="session")
def exact(tiny: Source) -> Network:
    """Its network in float32, its caches without roundings: only a selection can jump."""
    return tiny.network("fp32_noqdq")


@pytest.fixture(scope="session")
def exact_oracle(tiny: Source) -> Oracle:
    """The oracle of the same."""
    return tiny.oracle("fp32_noqdq")


@pytest.fixture(scope="session")
def with_topk(tiny: Source) -> Callable[[int], tuple[Network, Oracle]]:
    """The same two with another index_topk."""

    @cache
    def make(topk: int) -> tuple[Network, Oracle]:
        other = replace(tiny, config=replace(tiny.config, index_topk=topk))
        return other.network("fp32_noqdq"), other.oracle("fp32_noqdq")

    return make
