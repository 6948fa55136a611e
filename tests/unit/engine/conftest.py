"""One loaded toy for the tests of the engine."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from deepinfer.config.engine import EngineArgs
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import LoadedModel, load_model
from deepinfer.engine.parts import lay_out, make_scheduler
from deepinfer.model.network import Network
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.laws.networks import open_source


@pytest.fixture(scope="session")
def loaded(tiny_dir: Path) -> LoadedModel:
    """The toy in float32, its caches unrounded: sums in another order then differ by 1e-5 and no
    rounding or choice falls the other way because of that.
    """
    model = load_model(str(tiny_dir), EngineArgs(device="cpu", dtype="float32", max_num_seqs=4))
    network = open_source(tiny_dir).network("fp32_noqdq")
    return replace(model, engine=new_engine(model, network, is_ahead=False))


@pytest.fixture(scope="session")
def ahead(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """The same, each step planned before the tokens of the one before are known."""
    engine = new_engine(loaded, loaded.engine.worker.network, is_ahead=True)
    yield replace(loaded, engine=engine)
    engine.close()


@pytest.fixture(params=["loaded", "ahead"])
def either(request: pytest.FixtureRequest) -> LoadedModel:
    """Both, one after the other."""
    model: LoadedModel = request.getfixturevalue(request.param)
    return model


def new_engine(model: LoadedModel, network: Network, *, is_ahead: bool) -> Engine:
    options, sizes = lay_out(model.config, model.options, "bfloat16")
    pools = make_pools(model.config, sizes.num_blocks, sizes.num_slots, storage="float32")
    worker = Worker(network, pools)
    scheduler = make_scheduler(options, sizes)
    return Engine(scheduler, worker, model.tokenizer.eos_ids, is_ahead=is_ahead)
