"""Master weights, formats, optimizer and state."""

import pytest
import torch

from deepinfer.checkpoint.formats import FP4, FP8, FP8_ROWS
from tests.unit.training.small import random_ids, small_master
from training.attention import Mode
from training.kernels import training_kernels
from training.model import run_layers, token_loss
from training.optimizer import Optimizer, Rates, decay_factor, orthogonalised
from training.stages import STAGES, Loads, trained_names
from training.state import PART_BYTES, Progress, load_state, save_state
from training.weights import round_to_format


def test_quantised_weights_are_what_the_formats_hold():
    """Training sees other weights than those that are shipped: rounded together with a neighbour's
    block, or in another format.
    """
    master = small_master(training_kernels())
    master.refresh(quantise=True)
    for name, fmt in master.formats.items():
        values, made = master.values[name], master.parameters[name].detach()
        if fmt.block is None:
            wide = "BF16" not in fmt.dtypes
            assert torch.equal(made, values if wide else values.bfloat16().float()), name
            continue
        flat = values.flatten(0, -2)
        assert torch.equal(made.flatten(0, -2), round_to_format(flat, fmt)), name
        assert torch.equal(round_to_format(made.flatten(0, -2), fmt), made.flatten(0, -2)), name


def test_every_format_is_there():
    """A format that no weight has is never tried before export."""
    formats = set(small_master(training_kernels()).formats.values())
    assert {FP8, FP8_ROWS, FP4} <= formats


def test_fresh_weights_depend_on_names_alone():
    """A first loss that cannot be had again."""
    one, other = (small_master(training_kernels()) for _ in range(2))
    assert all(torch.equal(one.values[name], other.values[name]) for name in one.values)


def test_a_step_lowers_the_loss():
    """The optimizer goes uphill, or forgets a parameter."""
    master = small_master(training_kernels())
    names = trained_names(master, STAGES["pretrain"])
    optimizer = Optimizer(master, Rates(matrix=2e-3, other=1e-3), names)
    before = {name: master.values[name].clone() for name in names}
    losses = []
    for _ in range(4):
        token_ids = random_ids()
        final = run_layers(master.network, token_ids, Mode(select=False)).final
        loss = token_loss(master.network, final, token_ids, torch.ones(token_ids.shape))
        loss.backward()
        losses.append(loss.item())
        optimizer.step(1.0)
        master.refresh(quantise=False)
    assert losses == sorted(losses, reverse=True)
    # Indexers have their own loss, routers' biases no gradient.
    still = {name for name in names if torch.equal(before[name], master.values[name])}
    decayed_only = {name for name in names if ".indexer." in name}
    assert {name for name in still - decayed_only if not name.endswith("gate.bias")} == set()


def test_orthogonalised_has_singular_values_near_one():
    """Muon's iteration diverges, or large directions drown small ones as before."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 32, 64), (3, 64, 32), (2, 48, 48)):
        values = torch.linalg.svdvals(orthogonalised(torch.randn(shape, generator=generator)))
        assert 0.3 < values.median() < 1.3
        assert values.max() < 1.4


def test_a_step_takes_the_size_that_rates_say():
    """A matrix moves by another root mean square than 0.2 times its rate."""
    master = small_master(training_kernels())
    name = "layers.0.attn.wq_b.weight"
    optimizer = Optimizer(master, Rates(matrix=1e-2, decay=0.0), [name, "norm.weight"])
    before = master.values[name].clone()
    master.parameters[name].grad = torch.randn_like(before)
    optimizer.step(1.0)
    moved = (master.values[name] - before).square().mean().sqrt().item()
    assert moved == pytest.approx(0.2 * 1e-2, rel=0.4)


def test_balance_moves_biases_against_the_load():
    """The bias follows the load, and one expert gets everything."""
    master = small_master(training_kernels())
    loads = Loads(master)
    run_layers(master.network, random_ids(), Mode(select=False))
    name = "layers.3.ffn.gate.bias"
    counts, before = loads.counts[name].clone(), master.values[name].clone()
    assert int(counts.sum()) == random_ids().numel() * 2
    loads.balance(0.1, {name})
    moved = master.values[name] - before
    assert (moved[counts > counts.float().mean()] < 0).all()
    assert (moved[counts < counts.float().mean()] > 0).all()
    assert not loads.counts


def test_state_comes_back(tmp_path):
    """What outlives a piece is not what the piece had, or does not fit the way home."""
    master, other = (small_master(training_kernels()) for _ in range(2))
    for values in other.values.values():
        values.zero_()
    progress = Progress("distill", 12.5, 300, {512: 1000, 2048: 40})
    save_state(tmp_path, master, progress)
    assert load_state(tmp_path, other) == progress
    for name, values in master.values.items():
        torch.testing.assert_close(other.values[name], values, rtol=2**-8, atol=0)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) < PART_BYTES + (1 << 20)


@pytest.mark.parametrize(
    ("progress", "step", "factor"),
    [(0.0, 0, 0.1), (0.1, 50, 1.0), (0.5, 50, 1.0), (0.75, 50, 0.5), (1.0, 50, 0.02)],
)
def test_decay_factor(progress, step, factor):
    """The rate falls too early, or a resumed piece starts at full rate without moments."""
    assert decay_factor(progress, step, decay_from=0.5, warm_up=10) == pytest.approx(factor)
