"""How tensors are stored: safetensors types, the released formats, a tensor's record (spec 13).

Knows neither which tensors a model has nor any file; never imports torch.
"""

from dataclasses import dataclass
from math import prod

GROUP = 32  # channels that share one scale, in every quantised format of the release

# Bytes of one element, by the names the safetensors format uses.
DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers are stored.

    words: what to call it in a message.
    dtypes: those accepted, the released one first.
    block: rows and columns that one scale covers, if there are scales.
    per_byte: values packed in one byte along the last dimension, if more than one.
    """

    words: str
    dtypes: tuple[str, ...]
    block: tuple[int, int] | None = None
    per_byte: int = 1


FP8 = Format("FP8 in blocks of 32x32", ("F8_E4M3",), (GROUP, GROUP))
FP8_ROWS = Format("FP8 in groups of 32 channels", ("F8_E4M3",), (1, GROUP))
FP4 = Format("packed FP4 as expert_dtype says", ("I8",), (1, GROUP), per_byte=2)
BF16 = Format("BF16", ("BF16",))
PLAIN = Format("BF16 or F32", ("BF16", "F32"))
F32 = Format("F32", ("F32",))
SCALE = Format("power-of-two scales", ("F8_E8M0", "U8", "F32", "BF16"))


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: released name (no `model.` prefix), shape as stored, format."""

    name: str
    shape: tuple[int, ...]
    format: Format

    @property
    def dtype(self) -> str:
        """The released storage type."""
        return self.format.dtypes[0]

    @property
    def num_bytes(self) -> int:
        """Payload in the released storage type."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def value_shape(self) -> tuple[int, ...]:
        """The shape in values: twice the stored columns for packed FP4."""
        return (*self.shape[:-1], self.shape[-1] * self.format.per_byte)

    @property
    def is_scale(self) -> bool:
        """Holds the scales of another tensor."""
        return self.format is SCALE

    @property
    def partner(self) -> str | None:
        """The name of a weight's scales, or of the weight that scales belong to; else None."""
        if self.is_scale:
            return self.name.removesuffix(".scale") + ".weight"
        return self.name.removesuffix(".weight") + ".scale" if self.format.block else None
