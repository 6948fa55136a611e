"""Sinkhorn normalisation of hyper-connections with a backward that needs little memory.

Plain autograd would keep every one of the forty intermediate matrices. Each step divides by a sum,
so with the sums kept the backward walks from the result to the start. On a GPU both directions are
one Triton kernel each; elsewhere the same walk in torch.
"""

from typing import Any

import torch
from torch import Tensor

_ROWS_PER_PROGRAM = 32


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, eps: float, num_iters: int) -> Tensor:
        forward = _forward_gpu if logits.is_cuda else _forward_torch
        comb, sums = forward(logits.contiguous(), eps, num_iters)
        ctx.save_for_backward(comb, sums)
        ctx.eps = eps
        return comb

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        comb, sums = ctx.saved_tensors
        backward = _backward_gpu if comb.is_cuda else _backward_torch
        return backward(grads[0].contiguous(), comb, sums, ctx.eps), None, None


def sinkhorn(logits: Tensor, eps: float, num_iters: int) -> Tensor:
    """Float32 [T, M, M] -> [T, M, M]: row softmax + eps, then columns, rows, columns, ... (spec 4).

    M must be a power of two on a GPU.
    """
    return _Sinkhorn.apply(logits, eps, num_iters)


def _forward_torch(logits: Tensor, eps: float, num_iters: int) -> tuple[Tensor, Tensor]:
    """The result, and the sum that each division used: [2 * num_iters - 1, T, M]."""
    comb, sums = torch.softmax(logits, -1) + eps, []
    for step in range(2 * num_iters - 1):
        sums.append(comb.sum(_axis(step)))
        comb = comb / (sums[-1] + eps).unsqueeze(_axis(step))
    return comb, torch.stack(sums)


def _backward_torch(grad: Tensor, comb: Tensor, sums: Tensor, eps: float) -> Tensor:
    for step in reversed(range(len(sums))):
        divisor = (sums[step] + eps).unsqueeze(_axis(step))
        # y = x / (sum(x) + eps): dx = (dy - sum(dy * y)) / (sum(x) + eps), and x = y * that.
        grad = (grad - (grad * comb).sum(_axis(step), keepdim=True)) / divisor
        comb = comb * divisor
    share = comb - eps
    return share * (grad - (grad * share).sum(-1, keepdim=True))


def _axis(step: int) -> int:
    """Columns first (summed over rows, axis -2), then alternately."""
    return -2 if step % 2 == 0 else -1


def _forward_gpu(logits: Tensor, eps: float, num_iters: int) -> tuple[Tensor, Tensor]:
    from training.sinkhorn_triton import forward_kernel

    num_rows, size, _ = logits.shape
    comb, sums = torch.empty_like(logits), logits.new_empty(2 * num_iters - 1, num_rows, size)
    grid = (-(-num_rows // _ROWS_PER_PROGRAM),)
    forward_kernel[grid](
        logits, comb, sums, num_rows, eps, num_iters, size, _ROWS_PER_PROGRAM, num_warps=1
    )
    return comb, sums


def _backward_gpu(grad: Tensor, comb: Tensor, sums: Tensor, eps: float) -> Tensor:
    from training.sinkhorn_triton import backward_kernel

    num_rows, size, _ = comb.shape
    out = torch.empty_like(comb)
    grid = (-(-num_rows // _ROWS_PER_PROGRAM),)
    num_iters = (len(sums) + 1) // 2
    backward_kernel[grid](
        grad, comb, sums, out, num_rows, eps, num_iters, size, _ROWS_PER_PROGRAM, num_warps=1
    )
    return out
