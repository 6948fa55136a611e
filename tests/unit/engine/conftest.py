"""One loaded toy for the tests of the engine."""

from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer.config.engine import EngineArgs
from deepinfer.engine.loading import LoadedModel, load_model
from tests.laws.networks import open_source


@pytest.fixture(scope="session")
def loaded(tiny_dir: Path) -> LoadedModel:
    """The toy in float32, its caches unrounded: sums in another order then differ by 1e-5 and no
    rounding or choice falls the other way because of that.
    """
    model = load_model(str(tiny_dir), EngineArgs(device="cpu", dtype="float32"))
    return replace(model, network=open_source(tiny_dir).network("fp32_noqdq"))
