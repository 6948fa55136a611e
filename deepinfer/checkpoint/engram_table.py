"""Rows of an Engram table, decoded one by one from the mapped file (spec 9.4).

The released tables take 203 GB; a token needs 24 rows of 264 bytes from each. So a table is never
loaded: the operating system keeps in memory what is asked for often. Knows nothing of hashing.
"""

import torch
from torch import Tensor

from deepinfer.checkpoint.formats import FP8_ROWS
from deepinfer.checkpoint.index import CheckpointIndex
from deepinfer.checkpoint.load import decode_scale, map_file, refuse_non_finite, view
from deepinfer.kernels.reference.quant import decode_fp8_rows, encode_ue8m0


class EngramTable:
    """One layer's table: e4m3 [height, dim], scales [height, dim / 32]; dim is engram_head_dim."""

    def __init__(self, weight: Tensor, scale: Tensor, name: str) -> None:
        """Keep views of both tensors as stored. `name` is for messages only."""
        assert weight.shape[0] == scale.shape[0]
        # Bytes can be gathered on every version of torch, e4m3 cannot.
        self._codes = weight.view(torch.uint8)
        self._scale = scale
        self._name = name

    @property
    def height(self) -> int:
        """Number of rows."""
        return self._codes.shape[0]

    @property
    def row_bytes(self) -> tuple[int, int]:
        """Codes of a row, and its scales."""
        return self._codes.shape[1], self._scale.shape[1]

    def stored(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Rows first..last - 1: e4m3 codes and exponent codes, uint8 [n, dim] and [n, dim / 32].

        Raises CheckpointError if one holds a NaN.
        """
        codes = self._codes[first:last]
        scale = decode_scale(self._scale[first:last], self._name)
        refuse_non_finite(decode_fp8_rows(codes.view(torch.float8_e4m3fn), scale), self._name)
        return codes, encode_ue8m0(scale)

    def rows(self, row_ids: Tensor) -> Tensor:
        """int64 [...] -> float32 [..., engram_head_dim], on the device of `row_ids`.

        Reads each distinct row once, in the order of the file. An id outside the table is an
        IndexError: ids come from our own hash. Raises CheckpointError if a row holds a NaN.
        """
        distinct, places = row_ids.to("cpu").unique(return_inverse=True)
        codes = self._codes.index_select(0, distinct).view(torch.float8_e4m3fn)
        scale = decode_scale(self._scale.index_select(0, distinct), self._name)
        values = decode_fp8_rows(codes, scale)
        refuse_non_finite(values, self._name)
        return values[places].to(row_ids.device)


def open_engram_table(index: CheckpointIndex, layer_id: int) -> EngramTable:
    """Map the table of `layer_id`, which must be one of config's engram_layer_ids."""
    name = f"layers.{layer_id}.engram.embed.weight"
    spec = index.specs[name]
    assert spec.format is FP8_ROWS and spec.partner is not None
    weight, scale = index.locations[name], index.locations[spec.partner]
    # A map of its own, apart from the layer weights that share the file: those are read in one
    # sweep and profit from reading ahead, rows do not.
    return EngramTable(
        view(map_file(weight.path, scattered=True), weight),
        view(map_file(scale.path, scattered=True), scale),
        name,
    )
