"""Logits -> tokens (DESIGN: Gumbel-max). Every row on its own; ties go to the lowest id."""

import torch
from torch import Tensor

from deepinfer.sampling.noise import gumbel_noise


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row, the lowest id on a tie: float32 [T, V] -> int64 [T]."""
    best = logits.amax(-1, keepdim=True)
    ids = torch.arange(logits.shape[-1], device=logits.device)
    return torch.where(logits == best, ids, logits.shape[-1]).amin(-1)


def draw(
    logits: Tensor,
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: Tensor,
    choice: Tensor,
    position: Tensor,
) -> Tensor:
    """A token of each row from the filtered distribution: float32 [T, V] -> int64 [T].

    seed, choice, position: int64 [T], see `gumbel_noise`. The argmax of log-probability plus Gumbel
    noise is a draw from the distribution.
    """
    kept = filter_logits(logits.to(torch.float64) / temperature, top_k, top_p)
    return greedy(kept + gumbel_noise(seed, choice, position, logits.shape[-1]))


def filter_logits(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """-inf for tokens that do not take part: first top_k, then top_p among what is left; one always
    stays.

    top_p keeps the likeliest tokens, as many as are needed to reach top_p of the probability that
    top_k left. Among equal logits the lower id ranks first.
    """
    vocab_size = logits.shape[-1]
    if not 0 < top_k < vocab_size and top_p >= 1.0:
        return logits
    ranked, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=logits.device)
    if 0 < top_k < vocab_size:
        ranked = ranked.masked_fill(rank >= top_k, -torch.inf)
    if top_p < 1.0:
        probability = ranked.softmax(-1)
        before = probability.cumsum(-1) - probability
        ranked = ranked.masked_fill((before >= top_p) & (rank > 0), -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, ranked)
