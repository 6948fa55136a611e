"""How far a forward was from choosing otherwise.

Selections jump: where two scores are closer than float32 computes them, two right implementations
may choose differently and then differ by much. A law for all inputs has to leave such inputs out,
and this measures which they are.
"""

import torch
from torch import Tensor

from deepinfer.kernels.values import Selection
from deepinfer.model.network import Network
from tests.laws.networks import run_recorded

CLEAR = 1e-5  # more than float32 arithmetic in another order can move a score


@torch.no_grad()
def smallest_margin(network: Network, token_ids: Tensor) -> float:
    """The least score difference at any cut of a forward over int64 [S]: index, blocks, router."""
    config = network.setup.config
    _, _, calls = run_recorded(network, token_ids)
    cuts = []
    for name, ((inputs, output),) in calls.items():
        if name.endswith(".attn.indexer"):
            candidates = inputs[5]
            cuts.append(_margin(_allowed_scores(output, candidates), config.index_topk))
            if output.candidates is not None:
                blocks = _block_scores(output.scores, config.candidate_block_size)
                cuts.append(_margin(blocks, config.candidate_topk_blocks - 1))
        if name.endswith(".ffn.gate"):
            cuts.append(_router_margin(network.get_submodule(name), inputs[0]))
    return min(cuts)


def _allowed_scores(selection: Selection, candidates: Tensor | None) -> Tensor:
    if candidates is None:
        return selection.scores
    return selection.scores.masked_fill(~candidates, -torch.inf)


def _block_scores(scores: Tensor, size: int) -> Tensor:
    """Blocks' best scores, the newest block of each row left out: it is kept in any case."""
    padding = scores.new_full((len(scores), -scores.shape[1] % size), -torch.inf)
    blocks = torch.cat((scores, padding), 1).unflatten(1, (-1, size)).amax(-1)
    newest = (scores > -torch.inf).sum(1).sub(1).clamp_min(0) // size
    return blocks.scatter(1, newest[:, None], -torch.inf)


def _router_margin(gate: torch.nn.Module, x: Tensor) -> float:
    logits = gate.kernels.linear_float32(x, gate.weight)
    return _margin(torch.nn.functional.softplus(logits).sqrt() + gate.bias, gate.topk)


def _margin(scores: Tensor, count: int) -> float:
    """The least gap between the last that is taken and the first that is not: [T, N] -> number."""
    if scores.shape[1] <= count:
        return torch.inf
    best = scores.sort(dim=-1, descending=True).values
    gaps = (best[:, count - 1] - best[:, count])[best[:, count] > -torch.inf]
    return float(gaps.min()) if gaps.numel() else torch.inf
