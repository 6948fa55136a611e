"""Weights out of the files: as stored (mapped, not copied) or decoded to what they stand for.

Knows names, formats and where the bytes lie; knows nothing of layers, devices or how weights are
used.
"""

import mmap
import warnings
from pathlib import Path

import torch
from torch import Tensor

from deepinfer.checkpoint.formats import FP4, FP8, FP8_ROWS, SCALE, TensorSpec
from deepinfer.checkpoint.header import Location, open_file
from deepinfer.checkpoint.index import CheckpointIndex, open_index
from deepinfer.config.model import ModelConfig
from deepinfer.errors import CheckpointError
from deepinfer.kernels.reference.quant import (
    decode_fp4,
    decode_fp8,
    decode_fp8_rows,
    decode_ue8m0,
)

# Exponent codes are kept as bytes: torch's own type for them has hardly any operations.
TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.uint8,
    "I8": torch.int8,
    "U8": torch.uint8,
}
_DECODERS = {FP8: decode_fp8, FP8_ROWS: decode_fp8_rows, FP4: decode_fp4}
# Powers of two that the released scale type can hold are 2**-127 to 2**127. frexp writes them as
# 0.5 * 2**(exponent + 1).
_SCALE_EXPONENTS = (-126, 128)


class Checkpoint:
    """The tensors of one checkpoint. Threads may share it: nothing changes after opening.

    A map lives as long as any tensor that views it, also beyond the Checkpoint itself; its bytes
    are read from disk when touched, and the system drops them again when memory is short. The
    files must not be cut short while mapped: the operating system would end the process.
    """

    def __init__(self, index: CheckpointIndex) -> None:
        """Map every file of an index that `open_index` has checked."""
        self.index = index
        paths = sorted({place.path for place in index.locations.values()})
        self._maps = {path: map_file(path) for path in paths}

    def __contains__(self, name: str) -> bool:
        return name in self.index.specs

    def raw(self, name: str) -> Tensor:
        """A tensor as stored, without a copy; read-only. F8_E8M0 comes as uint8 exponent codes."""
        place = self.index.locations[name]
        return view(self._maps[place.path], place)

    def decoded(self, name: str) -> Tensor:
        """The numbers a tensor stands for: quantised ones and scales as float32, others as stored.

        A quantised weight times its scales is exact in float32, and in bfloat16 too. Raises
        CheckpointError naming the tensor if the result has a NaN or an infinity.
        """
        spec = self.index.specs[name]
        if spec.is_scale:
            return decode_scale(self.raw(name), name)
        if spec.format.block is None:
            return self.raw(name)
        return self._dequantise(spec)

    def _dequantise(self, spec: TensorSpec) -> Tensor:
        assert spec.partner is not None  # every format with a block has scales
        scale = decode_scale(self.raw(spec.partner), spec.partner)
        values = _DECODERS[spec.format](self.raw(spec.name), scale)
        refuse_non_finite(values, spec.name)
        return values


def open_checkpoint(folder: Path, config: ModelConfig) -> Checkpoint:
    """Check a folder against its configuration, then map its files.

    Raises CheckpointError before any weight is read if anything is missing, damaged or different.
    """
    return Checkpoint(open_index(folder, config))


def map_file(path: Path, *, scattered: bool = False) -> Tensor:
    """All bytes of a file as a read-only uint8 tensor, mapped.

    scattered: reads will be few and far apart, so reading ahead would only waste the disk.
    Writing into the tensor ends the process: the map is read-only, and torch cannot express that.
    """
    with open_file(path) as file:
        bytes_map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if scattered and hasattr(mmap, "MADV_RANDOM"):
        bytes_map.madvise(mmap.MADV_RANDOM)
    with warnings.catch_warnings():
        # A writable private map would avoid the warning, but the system refuses one that is larger
        # than its memory, and a shard of the released Engram table is.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(bytes_map, dtype=torch.uint8)


def view(file_bytes: Tensor, place: Location) -> Tensor:
    """The tensor that lies at `place` in the bytes of its file."""
    part = file_bytes[place.offset : place.offset + place.num_bytes]
    return part.view(TORCH_DTYPES[place.dtype]).view(place.shape)


def decode_scale(stored: Tensor, name: str) -> Tensor:
    """Scales in any accepted spelling -> float32: exponent codes (uint8) or plain powers of two.

    Raises CheckpointError for NaN, and for plain numbers that the released type could not hold.
    """
    if stored.dtype == torch.uint8:
        if bool((stored == 255).any()):
            raise _damaged(name, "exponent code 255, which is NaN")
        return decode_ue8m0(stored)
    scale = stored.to(torch.float32)
    mantissa, exponent = torch.frexp(scale)
    low, high = _SCALE_EXPONENTS
    good = (mantissa == 0.5) & (exponent >= low) & (exponent <= high) & scale.isfinite()
    if not bool(good.all()):
        raise _damaged(
            name, f"{float(scale[~good][0]):g}, not a power of two within 2**-127..2**127"
        )
    return scale


def refuse_non_finite(values: Tensor, name: str) -> None:
    """Raise CheckpointError if a decoded weight has NaN (a code of FP8) or overflowed."""
    good = values.isfinite()
    if not bool(good.all()):
        raise _damaged(name, f"{int((~good).sum())} values that decode to NaN or infinity")


def _damaged(name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"holds {what}",
        where=name,
        hint="no released weight does: the file is damaged or wrongly converted; fetch it again",
    )


# Every format that has scales has a decoder, and no other.
assert all(fmt.block for fmt in _DECODERS) and SCALE not in _DECODERS
