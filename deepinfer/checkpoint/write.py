"""Writes a checkpoint in the released format: float32 weights in; shards, index, config.json out.

The same weights give the same bytes. Tensors are encoded one at a time as they are written, so a
mapping that computes them when asked needs memory for one. Knows nothing of training.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from deepinfer.checkpoint.compare import shorten
from deepinfer.checkpoint.formats import DTYPE_BYTES, FP4, FP8, FP8_ROWS, TensorSpec
from deepinfer.checkpoint.header import LENGTH_BYTES
from deepinfer.checkpoint.index import INDEX_FILE
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.model import parse_model_config
from deepinfer.errors import CheckpointError
from deepinfer.kernels.reference.quant import encode_fp4, encode_fp8, encode_fp8_rows

_ENCODERS = {FP8: encode_fp8, FP8_ROWS: encode_fp8_rows, FP4: encode_fp4}
_PLAIN_DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_DATA_ALIGNMENT = 8


def write_checkpoint(
    folder: Path,
    config_json: dict[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Encode and write every weight that `config_json` asks for.

    tensors: released name of a weight -> values in their logical shape (FP4 unpacked), any float
    type. Scales are computed, not given. A weight and its scales go to the same file; a file has at
    most `shard_bytes` of payload unless one weight alone has more.

    Raises ConfigError for the configuration; CheckpointError for a weight that is missing, unknown,
    of another shape or not finite, and for a disk that is full or cannot be written.
    """
    specs = inventory(parse_model_config(config_json))
    _check_weights(tensors, specs, folder)
    shards = _split(specs, shard_bytes)
    files = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    total_bytes = sum(spec.num_bytes for spec in specs.values())
    index = {
        "metadata": {"total_size": total_bytes},
        "weight_map": {
            spec.name: file for file, shard in zip(files, shards, strict=True) for spec in shard
        },
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # First away with an older index and last in with the new one: a folder whose writing was
        # cut short must not pass for a checkpoint.
        (folder / INDEX_FILE).unlink(missing_ok=True)
        for file, shard in zip(files, shards, strict=True):
            _write_shard(folder / file, shard, specs, tensors)
        _write_json(folder / "config.json", config_json)
        _write_json(folder / INDEX_FILE, index)
    except OSError as error:
        raise CheckpointError(
            f"cannot be written: {error.strerror}",
            where=str(error.filename or folder),
            hint=f"it takes {total_bytes:,} bytes of space and the right to write there",
        ) from error


def _check_weights(
    tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], folder: Path
) -> None:
    weights = {name for name, spec in specs.items() if not spec.is_scale}
    for what, names in (
        ("weights are missing", sorted(weights - set(tensors))),
        ("tensors are not weights of this model", sorted(set(tensors) - weights)),
    ):
        if names:
            raise CheckpointError(
                f"{len(names)} {what}: {shorten(names)}",
                where=str(folder),
                hint="give every weight that the configuration asks for, and no scales",
            )


def _split(specs: Mapping[str, TensorSpec], shard_bytes: int) -> list[list[TensorSpec]]:
    """Specs by file: consecutive weights, each followed by its scales, while they fit."""
    shards: list[list[TensorSpec]] = [[]]
    room = shard_bytes
    for spec in specs.values():
        if spec.is_scale:
            continue  # travels with its weight
        unit = [spec, specs[spec.partner]] if spec.partner else [spec]
        unit_bytes = sum(part.num_bytes for part in unit)
        if unit_bytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1] += unit
        room -= unit_bytes
    # The widest types first, so that every tensor is aligned; the order is otherwise kept.
    return [sorted(shard, key=lambda spec: -DTYPE_BYTES[spec.dtype]) for shard in shards]


def _write_shard(
    path: Path,
    shard: list[TensorSpec],
    specs: Mapping[str, TensorSpec],
    tensors: Mapping[str, Tensor],
) -> None:
    """Written under another name until it is whole."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            _write_header(file, shard)
            for data in _encoded(shard, specs, tensors):
                file.write(data.contiguous().view(torch.uint8).numpy().data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write_header(file: BinaryIO, shard: list[TensorSpec]) -> None:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in shard:
        end = offset + spec.num_bytes
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _DATA_ALIGNMENT)
    file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)


def _encoded(
    shard: list[TensorSpec], specs: Mapping[str, TensorSpec], tensors: Mapping[str, Tensor]
) -> Iterator[Tensor]:
    """The stored form of each tensor in turn. Scales come out of their weight's encoding."""
    scales: dict[str, Tensor] = {}
    for spec in shard:
        if spec.is_scale:
            yield scales.pop(spec.name)
            continue
        values = _checked(spec, tensors[spec.name])
        if spec.partner is None:
            yield values.to(_PLAIN_DTYPES[spec.dtype])
            continue
        stored, scale = _ENCODERS[spec.format](values)
        assert stored.shape == spec.shape
        assert scale.shape == specs[spec.partner].shape
        scales[spec.partner] = scale
        yield stored


def _checked(spec: TensorSpec, weight: Tensor) -> Tensor:
    values = weight.detach().to("cpu", torch.float32)
    if tuple(values.shape) != spec.value_shape:
        raise CheckpointError(
            f"has the shape {list(values.shape)}, expected {list(spec.value_shape)}",
            where=spec.name,
            hint="the configuration and the weights are not of one model",
        )
    if not bool(values.isfinite().all()):
        raise CheckpointError(
            "holds a NaN or an infinity",
            where=spec.name,
            hint="no format here can store it as a usable weight",
        )
    return values


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
