"""Where the time goes: all of it is somewhere, none of it twice."""

from dataclasses import fields

import pytest
import torch

from deepinfer.bench.profile import (
    REST,
    OpShare,
    profile_ops,
    profile_torch,
    share_lines,
    timed_kernels,
)
from deepinfer.bench.steps import Case
from deepinfer.kernels.backends import load_kernels
from tests.unit.bench.small import CONFIG, small_network


def test_every_op_is_timed() -> None:
    """An op that is new has no line, and its time hides in the rest."""
    kernels, times = timed_kernels(load_kernels())
    network = small_network(kernels)
    shares = {share.name: share for share in profile_ops(network, times, Case(2, 300), 2)}
    used = {f.name for f in fields(kernels)} - {"name", "pick"}  # nothing is drawn: it is greedy
    assert set(shares) == used | {REST}
    layers = CONFIG.num_hidden_layers
    assert shares["experts"].num_calls == shares["attend"].num_calls == layers
    assert shares["hyper_mix"].num_calls == 2 * layers
    assert all(share.total_ms > 0 for share in shares.values())


def test_timed_ops_answer_alike() -> None:
    """What is profiled computes something else than what runs."""
    plain, (timed, _) = load_kernels(), timed_kernels(load_kernels())
    x = torch.linspace(-3, 3, 64).view(2, 32)
    assert timed.name == plain.name
    assert torch.equal(
        timed.rms_norm(x, torch.ones(32), 1e-6), plain.rms_norm(x, torch.ones(32), 1e-6)
    )


def test_torch_ops() -> None:
    """The second table counts all repeats as one step."""
    square = torch.ones(4, 4)

    def step() -> None:
        torch.mm(torch.mm(square, square), square)

    for num_repeats in (1, 3):
        shares = {share.name: share for share in profile_torch(step, num_repeats)}
        assert shares["aten::mm"].num_calls == 2


def test_table_adds_up() -> None:
    """Small ops are cut off, and the column is less than its own total."""
    shares = [OpShare(f"op {i}", 2, 100.0 - i) for i in range(20)]
    title, _, *lines = share_lines("a step", shares)
    total = sum(share.total_ms for share in shares)
    assert title == f"a step: {total:.1f} ms"
    assert sum(float(line[42:52]) for line in lines) == pytest.approx(total)
    assert lines[-1].strip().startswith("the other 5")
