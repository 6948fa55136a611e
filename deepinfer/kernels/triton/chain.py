"""Kernels that start before the one ahead of them in the stream has ended (Hopper).

A kernel launched so may start as soon as every program of the one before has called `release` or
ended: its own start, and reads of weights, then cost no time of their own. The price are rules,
which nothing checks:

1. What an earlier kernel may have written is read after `wait`, and all global writes come after
   it: memory that is written anew may still be read by the kernel before.
2. What is read before `wait` was complete long ago: weights and other constants.
3. Every program of a kernel that is launched so calls `wait`, on every path. A kernel has ended
   only if those before it have; one without `wait` would let its successor read too soon.
4. `release` may come at any time, and says nothing about memory. A kernel that never calls it
   releases the next by ending. Early is best, except before a kernel that needs the room of this
   one's programs that have not started yet, which cannot happen: all must have started.

Kernels of others need nothing: launched as usual, they wait for all before them.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from deepinfer.kernels.triton.device import is_hopper


@cache
def launch(device: torch.device) -> dict[str, bool]:
    """Arguments for launching a kernel that has a CHAINED: whether it is one of a chain.

    It is on compute capability 9 only, and never in the interpreter, which knows neither call.
    """
    if triton.knobs.runtime.interpret or not is_hopper(device):
        return {"CHAINED": False}
    return {"CHAINED": True, "launch_pdl": True}


@triton.jit
def wait(CHAINED: tl.constexpr):
    """Returns when all kernels before have ended and what they wrote can be read."""
    if CHAINED:
        tl.extra.cuda.gdc_wait()


@triton.jit
def start(CHAINED: tl.constexpr):
    """Both, for a kernel that has nothing to do before."""
    release(CHAINED)
    wait(CHAINED)


@triton.jit
def release(CHAINED: tl.constexpr):
    """From this program's side the next kernel may start."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
