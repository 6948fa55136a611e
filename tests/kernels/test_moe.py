"""Router and experts against one row and one expert at a time (spec 8)."""

import math

import pytest
import torch
from torch import Tensor

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.reference.quant import round_trip_fp8

KERNELS = load_kernels()
E, D, I = 5, 64, 32  # noqa: E741
LIMIT = 1.5


def score(logit: float) -> float:
    return math.sqrt(math.log1p(math.exp(-abs(logit))) + max(logit, 0.0))


def test_route():
    """Guards the router: the bias chooses and does not weigh; ids come ascending."""
    torch.manual_seed(0)
    logits, bias = torch.randn(20, E) * 3, torch.randn(E)
    ids, weights = KERNELS.route(logits, bias, 2, 1.5)
    for row in range(20):
        scores = [score(x) for x in logits[row].tolist()]
        biased = [s + b for s, b in zip(scores, bias.tolist(), strict=True)]
        chosen = sorted(sorted(range(E), key=lambda e: (-biased[e], e))[:2])
        assert ids[row].tolist() == chosen
        total = sum(scores[e] for e in chosen)
        expected = torch.tensor([scores[e] / total * 1.5 for e in chosen])
        torch.testing.assert_close(weights[row], expected)


@pytest.mark.parametrize("topk", [1, 3, 5])
def test_route_ties(topk):
    """Guards determinism: of equal experts the lower ids win."""
    ids, weights = KERNELS.route(torch.zeros(2, E), torch.zeros(E), topk, 1.5)
    assert ids.tolist() == [list(range(topk))] * 2
    torch.testing.assert_close(weights, torch.full((2, topk), 1.5 / topk))


def test_weights_sum_to_the_scale():
    """Guards the normalisation, also where every chosen score is tiny or the logit is huge."""
    logits = torch.tensor([[-40.0] * E, [60.0] * E, [-1.0, 2.0, 30.0, -30.0, 0.0]])
    _, weights = KERNELS.route(logits, torch.zeros(E), 3, 2.5)
    torch.testing.assert_close(weights.sum(-1), torch.full((3,), 2.5))


def test_swiglu():
    """Guards the clamps: the gate above only, the other factor on both sides, before silu."""
    values = [-9.0, -1.6, -0.3, 0.0, 0.4, 1.4, 1.6, 9.0]
    gate, up = torch.cartesian_prod(torch.tensor(values), torch.tensor(values)).unbind(1)
    expected = []
    for g, u in zip(gate.tolist(), up.tolist(), strict=True):
        clamped = min(g, LIMIT)
        expected.append(clamped / (1 + math.exp(-clamped)) * min(max(u, -LIMIT), LIMIT))
    torch.testing.assert_close(KERNELS.swiglu(gate, up, LIMIT), torch.tensor(expected))


def expert_of(row: Tensor, w1: Tensor, w3: Tensor, w2: Tensor, weight: float) -> Tensor:
    """The routing weight is applied before w2."""
    gate, up = (w1 @ row).clamp(max=LIMIT), (w3 @ row).clamp(-LIMIT, LIMIT)
    return w2 @ (gate * torch.sigmoid(gate) * up * weight)


def weights_of_experts() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(E, I, D) / 8, torch.randn(E, I, D) / 8, torch.randn(E, D, I) / 6


@pytest.mark.parametrize(
    "ids",
    [
        [[0, 1], [1, 4], [0, 4], [1, 2]],  # expert 3 has no row
        [[2, 3]],  # one row
        [[1, 3]] * 6,  # all rows to the same two
        [[0, 1, 2, 3, 4]] * 2,  # every expert
    ],
    ids=["one idle", "one row", "crowded", "all"],
)
def test_experts(ids):
    """Guards the sorting by expert: every row gets its own experts' sum, with its own weights."""
    torch.manual_seed(1)
    ids = torch.tensor(ids)
    x, weights = torch.randn(len(ids), D), torch.rand(ids.shape)
    w1, w3, w2 = weights_of_experts()
    actual = KERNELS.experts(x, ids, weights, w1, w3, w2, LIMIT)
    for row in range(len(ids)):
        expected = sum(
            expert_of(x[row], w1[e], w3[e], w2[e], float(weights[row, i]))
            for i, e in enumerate(ids[row].tolist())
        )
        torch.testing.assert_close(actual[row], expected, rtol=1e-4, atol=1e-5)


def test_experts_without_rows():
    """Guards a forward in which a part of the batch is empty."""
    none = torch.empty(0, 2, dtype=torch.int64)
    x = torch.empty(0, D)
    out = KERNELS.experts(x, none, torch.empty(0, 2), *weights_of_experts(), LIMIT)
    assert out.shape == (0, D)


def test_experts_add_in_float32():
    """Guards bf16: each expert's output is rounded, their sum is made in float32."""
    torch.manual_seed(2)
    ids = torch.tensor([[0, 1, 2, 3, 4]] * 8)
    x, weights = torch.randn(8, D).bfloat16(), torch.rand(ids.shape)
    w1, w3, w2 = (w.bfloat16() for w in weights_of_experts())
    total = torch.zeros(8, D)
    for e in range(E):
        one = torch.full((8, 1), e)
        total += KERNELS.experts(x, one, weights[:, e : e + 1], w1, w3, w2, LIMIT).float()
    assert torch.equal(KERNELS.experts(x, ids, weights, w1, w3, w2, LIMIT), total.bfloat16())


def test_quantised_experts():
    """Guards act_quant: inputs of all three products are rounded, after the routing weight."""
    torch.manual_seed(3)
    quantised = load_kernels(act_quant="fp8")
    ids, weights = torch.tensor([[0, 3], [3, 4]]), torch.rand(2, 2)
    x, (w1, w3, w2) = torch.randn(2, D), weights_of_experts()
    actual = quantised.experts(x, ids, weights, w1, w3, w2, LIMIT)
    for row in range(2):
        rounded = round_trip_fp8(x[row])
        expected = torch.zeros(D)
        for i, e in enumerate(ids[row].tolist()):
            gate = (w1[e] @ rounded).clamp(max=LIMIT)
            up = (w3[e] @ rounded).clamp(-LIMIT, LIMIT)
            hidden = gate * torch.sigmoid(gate) * up * weights[row, i]
            expected += w2[e] @ round_trip_fp8(hidden)
        torch.testing.assert_close(actual[row], expected, rtol=1e-4, atol=1e-5)
    assert (actual - KERNELS.experts(x, ids, weights, w1, w3, w2, LIMIT)).abs().max() > 1e-3
