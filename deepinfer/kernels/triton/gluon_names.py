"""What later versions of Triton than 3.6 have in Gluon by other names."""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

# A barrier of the warps of one part of a program.
barrier = getattr(gl, "thread_barrier", None) or gl.barrier
# From global to shared memory: what pointers point to (cp.async), and a tile of a descriptor.
copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
copy_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
