"""The router's choice against the reference (spec 8)."""

import pytest
import torch

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference import moe as reference
from deepinfer.kernels.triton.route import FEW_ROWS, logit_parts, route

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("poisoned")]


def check(logits, bias, topk, scale=1.5):
    check_choice(route(logits, bias, topk, scale), logits, bias, topk, scale)


def check_choice(found, logits, bias, topk, scale):
    ids, weights = found
    score = torch.nn.functional.softplus(logits.double()).sqrt()
    rank = (score + bias).sort(dim=-1, descending=True).values
    # Another exp may order what lies closer than its error otherwise.
    clear = rank[:, topk - 1] - rank[:, min(topk, rank.shape[1] - 1)] > 1e-5
    if topk == rank.shape[1]:
        clear[:] = True
    theirs, their_weights = reference.route(logits, bias, topk, scale)
    assert torch.equal(ids[clear], theirs[clear])
    torch.testing.assert_close(weights[clear], their_weights[clear], rtol=1e-5, atol=0)
    chosen = score.gather(1, ids)
    exact = chosen / chosen.sum(-1, keepdim=True) * scale
    error = ((weights - exact) / exact).abs().max().item() if len(exact) else 0.0
    print(f"relerr {error:.2e}")
    assert error <= 1e-5
    assert (ids.diff() > 0).all() and (ids >= 0).all() and (ids < logits.shape[1]).all()


@pytest.mark.parametrize("num_rows", [0, 1, 3, 17])
@pytest.mark.parametrize(("num_experts", "topk"), [(4, 4), (8, 1), (40, 3), (384, 6), (512, 8)])
def test_route(generator, device, num_rows, num_experts, topk):
    """Guards the choice and the weights, whatever the number of experts."""
    logits = torch.randn((num_rows, num_experts), generator=generator).to(device) * 3
    bias = torch.randn(num_experts, generator=generator).to(device)
    check(logits, bias, topk)


def test_route_many(generator, device, released):
    """Guards the released shape."""
    num_rows = 3000 if released else 40
    logits = torch.randn((num_rows, 384), generator=generator).to(device)
    check(logits, torch.randn(384, generator=generator).to(device) * 0.1, 6)


def test_extremes(generator, device):
    """Guards the softplus: neither end overflows, loses all digits or ends in NaN."""
    logits = torch.linspace(-80, 100, 64).to(device)[None]
    for shift in (0.0, 5.0):
        check(logits + shift, torch.zeros(64, device=device), 64)


def test_ties(device):
    """Guards ties, both zeros among them: the lower expert wins, and nobody is chosen twice."""
    logits = torch.zeros(2, 40, device=device)
    logits[1, 20:] = 1.0
    bias = torch.zeros(40, device=device)
    ids, _ = route(logits, bias, 6, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5], [20, 21, 22, 23, 24, 25]]
    silent = torch.full((1, 40), -1000.0, device=device)
    bias[::2] = -0.0
    assert route(silent, bias, 6, 1.0)[0].tolist() == [[0, 1, 2, 3, 4, 5]]


def test_not_a_number(device):
    """Guards the ids of a broken row: in range and distinct, as whoever reads them needs."""
    logits = torch.full((1, 40), torch.nan, device=device)
    ids, weights = route(logits, torch.zeros(40, device=device), 6, 1.0)
    assert ids.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert weights.isnan().all()


def test_batches(generator, device):
    """Guards batch invariance."""
    logits = torch.randn((11, 384), generator=generator).to(device)
    bias = torch.zeros(384, device=device)
    whole = route(logits, bias, 6, 1.5)
    for part in (slice(0, 1), slice(10, 11), slice(3, 5)):
        for ours, all_of_them in zip(route(logits[part], bias, 6, 1.5), whole, strict=True):
            assert torch.equal(ours, all_of_them[part])


@pytest.mark.parametrize("num_rows", [0, 1, 3, 8, 9, 16])
@pytest.mark.parametrize(
    ("num_experts", "num_inputs", "topk"),
    [(384, 5120, 6), (40, 72, 3), (8, 1032, 2), (17, 2048, 4)],
)
def test_from_few_rows(generator, device, num_rows, num_experts, num_inputs, topk):
    """Guards the product in parts, ragged ones too, of rows that lie apart; and that each row adds
    its parts up."""
    x, weight = rows_and_weight(generator, num_rows, num_experts, num_inputs)
    x, weight = torch.cat((x, x), 1).to(device)[:, num_inputs:], weight.to(device)
    bias = torch.randn(num_experts, generator=generator).to(device)
    parts = logit_parts(x, weight)
    exact = x.double() @ weight.double().T
    # Products of bf16 are exact in float32. A tensor core cuts off what is below 2**-23 of a sum,
    # 4 at most here, once in 16 inputs; up to 8 more roundings add up warps and parts.
    error = (parts.double().sum(0) - exact).abs().max().item() if num_rows else 0.0
    print(f"abserr {error:.2e}")
    assert error <= (num_inputs / 16 + 8) * 4 * 2.0**-23
    found = route(parts, bias, topk, 1.5)
    check_choice(found, exact.float(), bias, topk, 1.5)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    for ours, theirs in zip(found, route(total, bias, topk, 1.5), strict=True):
        assert torch.equal(ours, theirs)


def rows_and_weight(generator, num_rows, num_experts, num_inputs):
    """bf16 [T, D] and [E, D], so that logits have a size of 1."""
    x = torch.randn(num_rows, num_inputs, generator=generator)
    weight = torch.randn(num_experts, num_inputs, generator=generator) * num_inputs**-0.5
    return x.bfloat16(), weight.bfloat16()


def test_few_rows_alone(generator, device):
    """Guards a row's parts against its neighbours, and from those that are not numbers."""
    x, weight = (a.to(device) for a in rows_and_weight(generator, 16, 33, 2080))
    together = logit_parts(x, weight)
    for part in (slice(0, 1), slice(15, 16), slice(3, 12)):
        assert torch.equal(logit_parts(x[part], weight), together[:, part])
    x[4, 7] = torch.nan
    broken = logit_parts(x, weight)
    assert broken[:, 4].isnan().any(0).all()
    others = [row for row in range(16) if row != 4]
    assert torch.equal(broken[:, others], together[:, others])


@pytest.mark.parametrize("is_invariant", [False, True])
def test_which_product(generator, device, is_invariant):
    """Guards the ways to the same choice: many rows and few, and one order for all if asked."""
    kernels = load_kernels("triton", is_invariant=is_invariant)
    x, weight = (a.to(device) for a in rows_and_weight(generator, 20, 40, 192))
    bias = torch.randn(40, generator=generator).to(device)
    logits = (x.double() @ weight.double().T).float()
    whole = kernels.choose_experts(x, weight, bias, 3, 1.5)
    few = kernels.choose_experts(x[:FEW_ROWS], weight, bias, 3, 1.5)
    check_choice(whole, logits, bias, 3, 1.5)
    check_choice(few, logits[:FEW_ROWS], bias, 3, 1.5)
    if is_invariant:
        assert all(torch.equal(a[:FEW_ROWS], b) for a, b in zip(whole, few, strict=True))


def test_too_few(device):
    """Guards against ids of experts that do not exist."""
    with pytest.raises(ValueError, match="topk 3 of 2"):
        route(torch.zeros(1, 2, device=device), torch.zeros(2, device=device), 3, 1.0)
