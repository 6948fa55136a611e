"""The inventory: released figures, its agreement with real files, and its cost."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.model import ModelConfig, parse_model_config, read_model_config
from tests.conftest import RELEASED
from tests.shards import read_tensors

GOLDEN = Path(__file__).parents[2] / "golden"

# Spec 13.1, a sample of every kind: name, shape, storage type.
RELEASED_TENSORS = """
embed.weight 129280x5120 BF16
layers.0.attn.wq_a.weight 1280x5120 F8_E4M3
layers.0.attn.wq_a.scale 40x160 F8_E8M0
layers.39.attn.wq_b.weight 32768x1280 F8_E4M3
layers.39.attn.wq_b.scale 1024x40 F8_E8M0
layers.0.attn.wkv.scale 16x160 F8_E8M0
layers.0.attn.wo_a.weight 8192x4096 F8_E4M3
layers.0.attn.wo_a.scale 256x128 F8_E8M0
layers.0.attn.wo_b.scale 160x256 F8_E8M0
layers.0.attn.attn_sink 64 F32
layers.0.hc_ffn_fn 24x20480 F32
layers.0.hc_attn_scale 3 F32
layers.0.ffn.gate.weight 384x5120 BF16
layers.0.ffn.gate.bias_vl 384 F32
layers.0.ffn.shared_experts.w2.weight 5120x2304 F8_E4M3
layers.0.ffn.experts.383.w1.weight 2304x2560 I8
layers.0.ffn.experts.383.w1.scale 2304x160 F8_E8M0
layers.0.ffn.experts.0.w2.weight 5120x1152 I8
layers.0.ffn.experts.0.w2.scale 5120x72 F8_E8M0
layers.2.attn.compressor.wgate.weight 512x5120 BF16
layers.20.attn.compressor.wkv.weight 512x5120 BF16
layers.24.attn.indexer.wq_b.weight 4096x1280 F8_E4M3
layers.36.attn.indexer.weights_proj.weight 32x5120 BF16
layers.20.attn.indexer.wk.weight 128x512 BF16
layers.20.attn.indexer.k_norm.weight 128 BF16
layers.1.engram.embed.weight 384006168x256 F8_E4M3
layers.14.engram.embed.scale 384016682x8 F8_E8M0
layers.1.engram.wkv.weight 25600x6144 F8_E4M3
layers.1.engram.wkv.scale 800x192 F8_E8M0
layers.1.engram.q_weight 4x5120 BF16
mtp.0.main_proj.weight 5120x15360 F8_E4M3
mtp.0.main_proj.scale 160x480 F8_E8M0
mtp.2.markov_head.head.weight 129280x256 BF16
mtp.2.confidence_head.proj.weight 1x5376 BF16
mtp.2.ffn.experts.127.w3.weight 2304x2560 I8
vision.patch_embed.proj.weight 1024x588 BF16
vision.blocks.31.attn.wqkv.weight 3072x1024 BF16
vision.blocks.0.mlp.w1.weight 5632x1024 BF16
aligner.w1.weight 5120x9216 BF16
image_newline 5120 BF16
""".split("\n")[1:-1]

ABSENT = (
    "layers.20.attn.compressor.wgate.weight",
    "layers.24.attn.indexer.wk.weight",
    "layers.3.attn.indexer.wq_b.weight",
    "layers.0.attn.compressor.wkv.weight",
    "layers.0.ffn.experts.384.w1.weight",
    "mtp.0.ffn.experts.128.w1.weight",
    "mtp.1.norm.weight",
    "mtp.1.main_proj.weight",
)


@pytest.fixture(scope="module")
def released(released_config: ModelConfig) -> dict[str, TensorSpec]:
    return inventory(released_config)


def test_released_totals(released: dict[str, TensorSpec]) -> None:
    """Guards against any wrong shape or type: the bytes must sum to the released total_size."""
    assert len(released) == 96_085
    assert sum(spec.num_bytes for spec in released.values()) == 510_286_023_000
    assert sum(name.startswith("vision.") for name in released) == 259


@pytest.mark.parametrize("line", RELEASED_TENSORS)
def test_released_tensors(released: dict[str, TensorSpec], line: str) -> None:
    """Guards against two errors that cancel in the total."""
    name, shape, dtype = line.split()
    spec = released[name]
    assert (spec.shape, spec.dtype) == (tuple(map(int, shape.split("x"))), dtype)


def test_what_only_some_layers_have(released: dict[str, TensorSpec]) -> None:
    """Guards against asking for tensors the release does not have."""
    assert not [name for name in ABSENT if name in released]
    layers = Counter(int(name.split(".")[1]) for name in released if name.startswith("layers."))
    extra = {i: num - 2334 for i, num in layers.items() if num != 2334}
    assert extra == {1: 6, 2: 8, 8: 8, 14: 14, 20: 7, 24: 3, 28: 3, 32: 3, 36: 3}


@pytest.mark.parametrize("variant", ["a", "b"])
def test_golden_checkpoints(variant: str) -> None:
    """Guards against an inventory that fits one size only: these were written by other hands.

    Variant a has scale blocks that reach past the end of a dimension.
    """
    folder = GOLDEN / variant / "model"
    specs = inventory(read_model_config(folder))
    stored = read_tensors(folder)
    assert set(specs) == set(stored)
    for name, spec in specs.items():
        assert spec.shape == stored[name].shape, name
        assert stored[name].dtype in spec.format.dtypes, name


def test_partners(tiny_config: ModelConfig) -> None:
    """Guards against a scale without its weight, or paired with another's."""
    specs = inventory(tiny_config)
    for name, spec in specs.items():
        if spec.partner is not None:
            assert specs[spec.partner].partner == name
            assert specs[spec.partner].is_scale != spec.is_scale


def test_no_draft_module(released_json: dict[str, dict[str, object]]) -> None:
    """Guards against asking for draft tensors that a checkpoint without drafts cannot have."""
    text = released_json["text_config"]
    text["num_nextn_predict_layers"] = 0
    text["compress_ratios"] = [0] * 2 + [2] * 18 + [1] * 20
    assert not [n for n in inventory(parse_model_config(released_json)) if n.startswith("mtp.")]


PLAN_ALONE = """
import json, re, resource, sys
from deepinfer.checkpoint.formats import TensorSpec
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.layers import plan_layers
from deepinfer.config.model import parse_model_config
config = parse_model_config(json.load(open(sys.argv[1])))
print(json.dumps({
    "layers": len(plan_layers(config)),
    "tensors": len(inventory(config)),
    "heavy": [name for name in ("torch", "triton") if name in sys.modules],
    "peak_kb": int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]),
    "cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
}))
"""


def test_plan_and_inventory_are_cheap() -> None:
    """Guards against a torch import, or seconds of work, before a wrong folder can be refused.

    Time is the process's own, interpreter included: another process on the machine must not fail
    it. Memory too: the peak that getrusage tells begins with the parent's.
    """
    done = subprocess.run(
        [sys.executable, "-c", PLAN_ALONE, str(RELEASED)],
        capture_output=True,
        check=True,
        cwd=RELEASED.parents[1],
    )
    seen = json.loads(done.stdout)
    assert (seen["layers"], seen["tensors"], seen["heavy"]) == (40, 96_085, [])
    assert seen["peak_kb"] < 150_000
    assert seen["cpu_s"] < 1.0
