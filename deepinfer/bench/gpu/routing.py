"""Which of a rank's experts get rows in `bench rank`: all alike, or some more than others."""

import torch
from torch import Tensor


def choices(num_rows: int, topk: int, num_experts: int, skew: float = 0.0) -> Tensor:
    """Experts of each row, int64 [T, k], ascending and each at most once: so many of `num_experts`
    that there must be at least k.

    skew 0 gives row t the experts t * k and so on, round and round: all get as many, or one more.
    Else they are drawn, always the same, the k-th (from 1) with weights as k**-skew.
    """
    if not skew:
        return (torch.arange(num_rows * topk) % num_experts).view(num_rows, topk).sort(-1).values
    weights = torch.arange(1, num_experts + 1, dtype=torch.float64) ** -skew
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(weights.expand(num_rows, -1), topk, generator=generator)
    return drawn.sort(-1).values


def busiest(ids: Tensor, num_experts: int) -> float:
    """Rows of the busiest expert, in those of the mean."""
    return float(
        torch.bincount(ids.flatten(), minlength=num_experts).max() * num_experts / ids.numel()
    )
