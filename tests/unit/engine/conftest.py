"""One loaded toy for the tests of the engine."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepinfer.config.engine import EngineArgs
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import LoadedModel, lay_out, load_model, make_scheduler
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker
from tests.laws.networks import open_source


@pytest.fixture(scope="session")
def loaded(tiny_dir: Path) -> LoadedModel:
    """The toy in float32, its caches unrounded: sums in another order then differ by 1e-5 and no
    rounding or choice falls the other way because of that.
    """
    model = load_model(str(tiny_dir), EngineArgs(device="cpu", dtype="float32", max_num_seqs=4))
    options, sizes = lay_out(model.config, model.options)
    network = open_source(tiny_dir).network("fp32_noqdq")
    pools = make_pools(model.config, sizes.num_blocks, sizes.num_slots, dtype=torch.float32)
    engine = Engine(make_scheduler(options, sizes), Worker(network, pools), model.tokenizer.eos_ids)
    return replace(model, engine=engine)
