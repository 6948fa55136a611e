"""`deepinfer bench kernels`: the time of every kernel at the released model's shapes, on a GPU."""

from collections.abc import Iterator

import torch

from deepinfer.bench.gpu import attention_cases, layer_cases
from deepinfer.bench.gpu.timing import microseconds

_GROUPS = (
    layer_cases.experts,
    attention_cases.attention,
    attention_cases.scores,
    attention_cases.candidates,
    attention_cases.selections,
    layer_cases.streams,
    layer_cases.projections,
    layer_cases.others,
)


def kernel_lines() -> Iterator[str]:
    """A line for each case, as soon as it is known."""
    gpu = torch.cuda.get_device_properties(0)
    yield f"{gpu.name}, {gpu.multi_processor_count} multiprocessors, torch {torch.__version__}"
    yield f"{'kernel':52}{'us':>9}{'TB/s':>8}{'TFLOP/s':>9}"
    for group in _GROUPS:
        for case in group():
            us = microseconds(case.calls)
            rate = f"{case.num_bytes / us / 1e6:8.2f}" if case.num_bytes else " " * 8
            speed = f"{case.num_flops / us / 1e6:9.0f}" if case.num_flops else ""
            yield f"{case.name:52}{us:9.1f}{rate}{speed}".rstrip()
        torch.cuda.empty_cache()
