"""Decoding: every format, every spelling of scales, what must be refused, what costs nothing."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from struct import pack

import numpy as np
import pytest
import safetensors.torch
import torch

from deepinfer.checkpoint.load import Checkpoint, open_checkpoint
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.errors import CheckpointError
from tests.shards import Stored, clone, read_tensors, repack

GOLDEN = Path(__file__).parents[2] / "golden"
FP8_WEIGHT = "layers.0.attn.wq_a"
FP4_WEIGHT = "layers.3.ffn.experts.7.w1"
ENGRAM_ROWS = "layers.1.engram.embed"


def e4m3(code: int) -> float:
    """One code by the format's definition: sign, 4 bits of exponent (bias 7), 3 of mantissa."""
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    value = (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6
    return -value if sign else value


E4M3 = np.array([e4m3(code) for code in range(256)])
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def by_hand(stored: dict[str, Stored], name: str, block: tuple[int, int]) -> np.ndarray:
    """weight * scale[row // block rows, column // block columns], in float64."""
    weight, scale = stored[name + ".weight"], stored[name + ".scale"]
    codes = np.frombuffer(weight.data, np.uint8).reshape(weight.shape)
    if weight.dtype == "I8":
        values = np.empty((codes.shape[0], 2 * codes.shape[1]))
        values[:, 0::2], values[:, 1::2] = E2M1[codes & 15], E2M1[codes >> 4]
    else:
        values = E4M3[codes]
    powers = 2.0 ** (np.frombuffer(scale.data, np.uint8).reshape(scale.shape).astype(float) - 127)
    row, column = np.indices(values.shape)
    return values * powers[row // block[0], column // block[1]]


@pytest.mark.parametrize("variant", ["a", "b"])
@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("layers.0.attn.wq_b", (32, 32)),
        ("layers.2.attn.wo_a", (32, 32)),
        ("layers.0.ffn.shared_experts.w2", (32, 32)),
        ("layers.1.engram.wkv", (32, 32)),
        ("layers.1.engram.embed", (1, 32)),
        ("layers.0.ffn.experts.1.w1", (1, 32)),
        ("mtp.2.ffn.experts.1.w2", (1, 32)),
    ],
)
def test_decoding_by_hand(variant: str, name: str, block: tuple[int, int]) -> None:
    """Guards against swapped nibbles, transposed blocks, and rows scaled as blocks."""
    folder = GOLDEN / variant / "model"
    stored = read_tensors(folder)
    decoded = open_checkpoint(folder, read_model_config(folder)).decoded(name + ".weight")
    assert decoded.dtype == torch.float32
    assert np.array_equal(decoded.double().numpy(), by_hand(stored, name, block))


def test_raw_equals_the_library(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against wrong offsets: another reader of the format sees the same bytes."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    seen = 0
    for path in tiny_dir.glob("*.safetensors"):
        for name, expected in safetensors.torch.load_file(path).items():
            raw = checkpoint.raw(name)
            assert raw.shape == expected.shape
            assert torch.equal(raw.view(torch.uint8), expected.view(torch.uint8))
            seen += 1
    assert seen == len(checkpoint.index.specs)


def test_decoded_is_exact_in_bfloat16(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against decoding that would lose bits once weights are kept in bfloat16."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    for name, spec in checkpoint.index.specs.items():
        if spec.format.block:
            decoded = checkpoint.decoded(name)
            assert torch.equal(decoded.bfloat16().float(), decoded), name


def exponents(stored: Stored) -> np.ndarray:
    return np.frombuffer(stored.data, np.uint8).astype(np.uint32)


SPELLINGS: dict[str, Callable[[Stored], Stored]] = {
    "F8_E8M0": lambda s: s,
    "U8": lambda s: replace(s, dtype="U8"),
    "F32": lambda s: Stored("F32", s.shape, (exponents(s) << 23).tobytes()),
    "BF16": lambda s: Stored("BF16", s.shape, (exponents(s) << 7).astype(np.uint16).tobytes()),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_spellings_of_scales(
    tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path, spelling: str
) -> None:
    """N01: exponent bytes, float32 and bfloat16 powers of two decode to the same weights."""
    folder = clone(tiny_dir, tmp_path)
    respell = SPELLINGS[spelling]
    repack(
        folder,
        lambda t: t.update({n: respell(s) for n, s in t.items() if s.dtype == "F8_E8M0"}),
    )
    old, new = open_checkpoint(tiny_dir, tiny_config), open_checkpoint(folder, tiny_config)
    names = [name for name, spec in old.index.specs.items() if spec.format.block]
    assert len(names) > 300
    for name in names:
        assert torch.equal(old.decoded(name), new.decoded(name)), name


def open_with(
    tiny_dir: Path, config: ModelConfig, tmp_path: Path, changes: dict[str, Stored]
) -> Checkpoint:
    folder = clone(tiny_dir, tmp_path)
    repack(folder, lambda t: t.update(changes))
    return open_checkpoint(folder, config)


SCALE_SHAPE = (2, 3)
WRONG_SCALES = {
    "NaN code": Stored("F8_E8M0", SCALE_SHAPE, bytes([127] * 5 + [255])),
    "NaN byte": Stored("U8", SCALE_SHAPE, bytes([127] * 5 + [255])),
    **{
        f"float {value}": Stored("F32", SCALE_SHAPE, pack("<6f", 1, 1, 1, 1, 1, value))
        for value in (float("nan"), float("inf"), 0.0, -1.0, 3.0, 2.0**-128, 127.0)
    },
    "bfloat 1.5": Stored("BF16", SCALE_SHAPE, bytes([0x80, 0x3F] * 5 + [0xC0, 0x3F])),
}


@pytest.mark.parametrize("case", WRONG_SCALES)
def test_scales_that_are_refused(
    tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path, case: str
) -> None:
    """N01: an exponent byte stored as a float (127.0), NaN, zero, a negative: refused by name."""
    changed = open_with(
        tiny_dir, tiny_config, tmp_path, {FP8_WEIGHT + ".scale": WRONG_SCALES[case]}
    )
    for name in (FP8_WEIGHT + ".weight", FP8_WEIGHT + ".scale"):
        with pytest.raises(CheckpointError, match=FP8_WEIGHT + r"\.scale") as caught:
            changed.decoded(name)
        assert caught.value.hint


def test_extreme_scales(tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path) -> None:
    """Guards against powers of two at the ends of the type, the lowest a subnormal float32."""
    edges = pack("<6f", 2.0**-127, 2.0**-126, 1, 2, 2.0**100, 2.0**127)
    codes = bytes([0, 1, 127, 128, 227, 254])
    name = FP8_WEIGHT + ".scale"
    for i, stored in enumerate(
        (Stored("F32", SCALE_SHAPE, edges), Stored("F8_E8M0", SCALE_SHAPE, codes))
    ):
        (tmp_path / str(i)).mkdir()
        changed = open_with(tiny_dir, tiny_config, tmp_path / str(i), {name: stored})
        expected = torch.frombuffer(bytearray(edges), dtype=torch.float32).view(SCALE_SHAPE)
        assert torch.equal(changed.decoded(name), expected)


@pytest.mark.parametrize("code", [0x7F, 0xFF])
@pytest.mark.parametrize("name", [FP8_WEIGHT, ENGRAM_ROWS])
def test_nan_weights_are_refused(
    tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path, name: str, code: int
) -> None:
    """Guards against one damaged byte that turns every answer into NaN."""
    old = read_tensors(tiny_dir)[name + ".weight"]
    data = bytearray(old.data)
    data[-1] = code
    changed = {name + ".weight": replace(old, data=bytes(data))}
    with pytest.raises(CheckpointError, match=name):
        open_with(tiny_dir, tiny_config, tmp_path, changed).decoded(name + ".weight")


def test_overflow_is_refused(tiny_dir: Path, tiny_config: ModelConfig, tmp_path: Path) -> None:
    """Guards against a scale so large that the product is infinite."""
    scale = Stored("F8_E8M0", SCALE_SHAPE, bytes([254] * 6))
    changed = open_with(tiny_dir, tiny_config, tmp_path, {FP8_WEIGHT + ".scale": scale})
    with pytest.raises(CheckpointError, match="infinity"):
        changed.decoded(FP8_WEIGHT + ".weight")


def test_views_outlive_the_checkpoint(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against a map closed while a tensor still views it, which would end the process."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    raw, copy = checkpoint.raw("embed.weight"), checkpoint.raw("embed.weight").clone()
    assert raw.data_ptr() == checkpoint.raw("embed.weight").data_ptr(), "a view, not a copy"
    del checkpoint
    assert torch.equal(raw, copy)


def test_threads(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against shared state between readers, such as a file position."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    names = [name for name, spec in checkpoint.index.specs.items() if spec.format.block]
    expected = [checkpoint.decoded(name) for name in names]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            for one, other in zip(pool.map(checkpoint.decoded, names), expected, strict=True):
                assert torch.equal(one, other)


def test_contains(tiny_dir: Path, tiny_config: ModelConfig) -> None:
    """Guards against asking a checkpoint for what this configuration does not have."""
    checkpoint = open_checkpoint(tiny_dir, tiny_config)
    assert "norm.weight" in checkpoint
    assert "layers.0.attn.compressor.wkv.weight" not in checkpoint
