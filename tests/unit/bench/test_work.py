"""What a step of the released model must do, against figures that others worked out."""

import pytest
import torch

from deepinfer.bench.gpu.work import Work, work_of
from deepinfer.bench.steps import Case
from deepinfer.kernels.backends import load_kernels
from deepinfer.model.basic import Setup
from deepinfer.model.network import Network

CONTEXT = 131_071


@pytest.fixture(scope="module")
def one_row(released_config) -> dict[str, Work]:
    """Of one token at a context of 131,072, all experts on one GPU."""
    pytest.importorskip("triton")
    setup = Setup(released_config, load_kernels("triton"), torch.bfloat16, None)
    with torch.device("meta"):
        network = Network(setup, [0] * released_config.vocab_size)
    return work_of(network, Case(1, CONTEXT))


def test_operations(one_row: dict[str, Work]) -> None:
    """A part is forgotten, or counted for layers that do not do it."""
    giga = {part: work.num_flops / 1e9 for part, work in one_row.items()}
    assert giga["attention"] == pytest.approx(3.22, abs=0.01)
    assert giga["index scores"] == pytest.approx(3.22, abs=0.01)
    assert giga["experts"] + giga["products"] == pytest.approx(32.2, rel=0.02)


def test_bytes(one_row: dict[str, Work]) -> None:
    """Weights are counted as they are not kept, or caches per row that are read per sequence."""
    mega = {part: work.num_bytes / 1e6 for part, work in one_row.items()}
    assert mega["experts"] == pytest.approx(40 * 112.8, rel=0.001)
    assert mega["index scores"] == pytest.approx(26.7 + 1.57, rel=0.01)


def test_a_prompt_runs_its_second_half_for_few_rows(released_config) -> None:
    """A prompt is held against what it does not do."""
    pytest.importorskip("triton")
    setup = Setup(released_config, load_kernels("triton"), torch.bfloat16, None, (0, 4))
    with torch.device("meta"):
        network = Network(setup, [0] * released_config.vocab_size)
    work = work_of(network, Case(1, 0, 8192), num_kept=140)
    # 15.6 of linear and 1.54 of attention, a token, and what 140 rows add.
    assert work["products"].num_flops + work["experts"].num_flops == pytest.approx(
        15.6e9 * 8192, rel=0.03
    )
    assert work["attention"].num_flops == pytest.approx(1.54e9 * 8192, rel=0.03)
