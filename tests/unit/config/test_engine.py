"""`resolve`: every option decided from what was asked, the model and the machine, or refused by
name.
"""

import math
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer.config.engine import EngineArgs, engine_args, resolve
from deepinfer.config.engine_config import EngineConfig
from deepinfer.config.machine import Machine
from deepinfer.config.model import ModelConfig
from deepinfer.errors import ConfigError

PLAIN = Machine(has_cuda=False, has_npu=False, num_cpus=6, memory_bytes=8000)
NVIDIA = replace(PLAIN, has_cuda=True)
ASCEND = replace(PLAIN, has_npu=True)

WRONG: dict[str, tuple[Any, ...]] = {
    "device": ("gpu", "CPU", "cuda:0", "", None, 5, [], True),
    "dtype": ("fp32", "float16", "torch.float32", "auto", "", None, 32),
    "weight_dtype": ("fp8", "float16", "", None, 8),
    "act_quant": ("on", "fp4", "", None, False, True),
    "max_model_len": (0, 1, -5, 4097, 10**30, 100.0, "100", True),
    "num_threads": (0, -1, 1025, 2.0, "2", True),
    "load_format": ("random", "safetensors", "", None, 1),
    "expert_shard": ("", "1", "1/1", "-1/8", "8/8", "0/7", "0/0", "a/b", 1, True, "0/8 "),
    "layers": ("", "3", "3:", ":3", "3:3", "4:3", "0:11", "-1:3", "0:3 ", 3, True, (0, 3)),
    "engram_memory": ("disk", "cpu", "", None, 1),
    "max_num_seqs": (0, -1, 65_537, 8.0, "8", None, True),
    "max_num_batched_tokens": (0, 255, 2**20 + 1, 512.0, "512", True),
    "kv_cache_bytes": (0, -1, 2**60 + 1, 1e9, "1G", True),
    "gpu_memory_utilization": (0, -0.1, 1.01, math.nan, math.inf, "0.9", None, True),
    "batch_invariant": ("on", 1, 0),
    "enforce_eager": ("on", 1, 0),
    "async_scheduling": ("on", "false", 1, 0),
    "enable_prefix_caching": ("on", "false", 1, 0),
    "prefix_replay": ("off", "mask", "", True),
    "kv_host_bytes": (-1, 2**60 + 1, 1e9, "1G", None, True),
    "kv_disk_dir": (5, True, []),
    "kv_disk_bytes": (-1, 2**60 + 1, 1e9, "1G", None, True),
    "replay": ("on", "compacted", "", "MASK", False, 1, []),
    "keep_tokens": (-1, 2**31, 140.0, "140", True),
    "draft_schedule": ("on", "", "FIXED", True, 5),
    "num_drafts": (0, -1, 6, 5.0, "5", True),
    "accept": ("greedy", "", None, True),
    "seed": (2**64, -(2**63) - 1, 1.0, "1", True),
    "data_parallel_size": (0, 2, 1.0, "1", None, True),
    "context_parallel_size": (0, 2, 1.0, "1", None, True),
    "expert_parallel_size": (0, 2, 1.0, "1", None, True),
}


def test_every_option_is_tried() -> None:
    """A new option comes without its wrong values."""
    assert {f.name for f in fields(EngineArgs)} == set(WRONG)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_wrong_values(name: str, value: object, tiny_config: ModelConfig) -> None:
    """N11: a word that nobody knows is found out deep inside torch, after the weights were read."""
    with pytest.raises(ConfigError, match="expected") as caught:
        resolve(EngineArgs(**{name: value}), tiny_config, NVIDIA)
    assert caught.value.where == name
    assert caught.value.hint


def test_defaults(tiny_config: ModelConfig) -> None:
    """A default moves without a decision."""
    assert resolve(EngineArgs(), tiny_config, PLAIN) == EngineConfig(
        device="cpu",
        dtype="bfloat16",
        weight_dtype="auto",
        act_quant="off",
        load_format="auto",
        kernels="reference",
        slow_kernels="",
        batch_invariant=True,
        enforce_eager=True,
        expert_shard=(0, 1),
        layers=(0, 10),
        engram_memory="file",
        max_model_len=4096,
        asked_model_len=False,
        max_num_seqs=256,
        max_num_batched_tokens=512,
        kv_cache_bytes=2000,
        num_threads=1,
        seed=None,
        replay="off",
        keep_tokens=140,
        draft_schedule="fixed",
        num_drafts=5,
        accept="auto",
        async_scheduling=False,
        enable_prefix_caching=True,
        prefix_replay="exact",
        kv_host_bytes=0,
        kv_disk_dir=None,
        kv_disk_bytes=0,
    )


@pytest.mark.parametrize(
    ("options", "machine", "expected"),
    [
        ({}, PLAIN, "exact"),
        ({"prefix_replay": "bounded"}, PLAIN, "bounded"),
        ({"batch_invariant": False}, PLAIN, "bounded"),
        ({"batch_invariant": True, "prefix_replay": "bounded"}, PLAIN, "exact"),
        ({}, NVIDIA, "bounded"),
        ({"prefix_replay": "exact"}, NVIDIA, "exact"),
    ],
)
def test_prefix_replay(
    options: dict[str, Any], machine: Machine, expected: str, tiny_config: ModelConfig
) -> None:
    """The same seeded request gives another answer when its prompt is found."""
    assert resolve(EngineArgs(**options), tiny_config, machine).prefix_replay == expected


@pytest.mark.parametrize(
    ("options", "where"),
    [({"kv_disk_dir": "x"}, "kv_disk_bytes"), ({"kv_disk_bytes": 5}, "kv_disk_dir")],
)
def test_a_disk_needs_a_folder_and_a_size(
    options: dict[str, Any], where: str, tiny_config: ModelConfig
) -> None:
    """Half of it is given, and nothing is kept on a disk."""
    with pytest.raises(ConfigError) as caught:
        resolve(EngineArgs(**options), tiny_config, PLAIN)
    assert caught.value.where == where
    both = EngineArgs(kv_disk_dir="x", kv_disk_bytes=5)
    assert resolve(both, tiny_config, PLAIN).kv_disk_dir == Path("x")


@pytest.mark.parametrize(
    ("asked", "machine", "expected"),
    [
        (None, PLAIN, False),
        (None, NVIDIA, True),
        (True, PLAIN, True),
        (False, NVIDIA, False),
    ],
)
def test_async_scheduling(
    asked: Any, machine: Machine, expected: bool, tiny_config: ModelConfig
) -> None:
    """The host of a device that works by itself waits for it, or what was asked is forgotten."""
    options = resolve(EngineArgs(async_scheduling=asked), tiny_config, machine)
    assert options.async_scheduling == expected


@pytest.mark.parametrize(
    ("asked", "machine", "expected"),
    [
        ("auto", PLAIN, "cpu"),
        ("auto", NVIDIA, "cuda"),
        ("auto", ASCEND, "cpu"),  # its ops are slower than the CPU's: only on demand
        ("cpu", NVIDIA, "cpu"),
        ("cuda", NVIDIA, "cuda"),
        ("npu", ASCEND, "npu"),
    ],
)
def test_device(asked: Any, machine: Machine, expected: str, tiny_config: ModelConfig) -> None:
    """A machine computes on another device than the one it was told."""
    assert resolve(EngineArgs(device=asked), tiny_config, machine).device == expected


@pytest.mark.parametrize(
    ("asked", "machine", "needs"),
    [
        ("cuda", PLAIN, "NVIDIA GPU"),
        ("cuda", ASCEND, "NVIDIA GPU"),
        ("npu", PLAIN, "torch_npu"),
        ("npu", NVIDIA, "torch_npu"),
    ],
)
def test_device_that_is_not_there(
    asked: Any, machine: Machine, needs: str, tiny_config: ModelConfig
) -> None:
    """N11: a device that is not there falls back to the CPU, or fails minutes later."""
    with pytest.raises(ConfigError) as caught:
        resolve(EngineArgs(device=asked), tiny_config, machine)
    assert caught.value.where == "device"
    assert needs in caught.value.hint


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("weight_dtype", ["auto", "bfloat16", "float32"])
def test_weight_dtype(dtype: Any, weight_dtype: Any, tiny_config: ModelConfig) -> None:
    """Weights are kept in another type than asked for, and take twice the memory."""
    found = resolve(EngineArgs(dtype=dtype, weight_dtype=weight_dtype), tiny_config, PLAIN)
    assert (found.dtype, found.weight_dtype) == (dtype, weight_dtype)


@pytest.mark.parametrize("asked", [2, 4095, 4096])
def test_max_model_len(asked: int, tiny_config: ModelConfig) -> None:
    """A limit that the checkpoint allows is refused, or another one is kept."""
    assert tiny_config.max_position_embeddings == 4096
    found = resolve(EngineArgs(max_model_len=asked), tiny_config, PLAIN)
    assert (found.max_model_len, found.asked_model_len) == (asked, True)


@pytest.mark.parametrize(
    ("hidden_size", "asked", "expected"), [(96, None, 1), (96, 3, 3), (4096, None, 6), (4096, 1, 1)]
)
def test_num_threads(
    hidden_size: int, asked: int | None, expected: int, tiny_config: ModelConfig
) -> None:
    """A small model is slowed down by threads that wait for each other, a large one starves."""
    model = replace(tiny_config, hidden_size=hidden_size)
    assert resolve(EngineArgs(num_threads=asked), model, PLAIN).num_threads == expected


@pytest.mark.parametrize(
    ("args", "machine", "rows"),
    [
        (EngineArgs(), PLAIN, 512),
        (EngineArgs(), NVIDIA, 8192),
        (EngineArgs(max_num_seqs=600), PLAIN, 600),
        (EngineArgs(max_num_batched_tokens=300), NVIDIA, 300),
        (EngineArgs(max_num_seqs=4, max_num_batched_tokens=4), PLAIN, 4),
    ],
)
def test_rows_of_a_step(
    args: EngineArgs, machine: Machine, rows: int, tiny_config: ModelConfig
) -> None:
    """A step has fewer rows than sequences that run, and one of them never gets ahead."""
    assert resolve(args, tiny_config, machine).max_num_batched_tokens == rows


@pytest.mark.parametrize(("asked", "num_bytes"), [(None, 2000), (1, 1), (77, 77)])
def test_memory_of_the_caches(asked: int | None, num_bytes: int, tiny_config: ModelConfig) -> None:
    """The caches take all of the machine's memory, or more than was said."""
    found = resolve(EngineArgs(kv_cache_bytes=asked), tiny_config, PLAIN)
    assert found.kv_cache_bytes == num_bytes


def test_batch_invariance(tiny_config: ModelConfig) -> None:
    """F05: the switch is accepted where it does nothing."""
    for asked in (None, False, True):
        resolve(EngineArgs(batch_invariant=asked), tiny_config, PLAIN)
    with pytest.raises(ConfigError) as caught:
        resolve(EngineArgs(batch_invariant=True), tiny_config, NVIDIA)
    assert caught.value.where == "batch_invariant"


@pytest.mark.parametrize(("asked", "window", "kept"), [(None, 128, 140), (22, 16, 22)])
def test_keep_tokens(asked: int | None, window: int, kept: int, tiny_config: ModelConfig) -> None:
    """Replay keeps another number of tokens than asked for, or refuses the least one."""
    model = replace(tiny_config, sliding_window=window)
    assert resolve(EngineArgs(replay="mask", keep_tokens=asked), model, PLAIN).keep_tokens == kept


@pytest.mark.parametrize(("asked", "window", "least"), [(133, 128, 134), (None, 135, 141)])
def test_too_few_tokens_kept(
    asked: int | None, window: int, least: int, tiny_config: ModelConfig
) -> None:
    """The last token of a prompt sees less than its window, or drafts reach before what is kept."""
    model = replace(tiny_config, sliding_window=window)
    with pytest.raises(ConfigError, match=f"from {least} to") as caught:
        resolve(EngineArgs(replay="mask", keep_tokens=asked), model, PLAIN)
    assert caught.value.where == "keep_tokens"
    assert "replay=off" in caught.value.hint
    resolve(EngineArgs(keep_tokens=asked), model, PLAIN)  # and without replay nothing is hidden


def test_replay_of_a_model_that_needs_all_rows(tiny_config: ModelConfig) -> None:
    """Entries of a later source are made of rows that saw no window."""
    model = replace(tiny_config, kv_source_layer_ids=(2, 4, 6, 8))
    with pytest.raises(ConfigError, match=r"\[6, 8\]") as caught:
        resolve(EngineArgs(replay="mask"), model, PLAIN)
    assert caught.value.where == "replay"


def test_engine_args() -> None:
    """A known option is dropped on its way."""
    assert engine_args({"dtype": "float32", "max_model_len": 7}) == EngineArgs(
        dtype="float32", max_model_len=7
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("max_model_length", "did you mean max_model_len?"),
        ("Dtype", "did you mean dtype?"),
        ("enable_lora", "options are: device, dtype"),
        ("trust_remote_code", "leave it out: no code is loaded from a model"),
    ],
)
def test_unknown_option(name: str, hint: str) -> None:
    """A misspelt option is ignored, and the default computes something else."""
    with pytest.raises(ConfigError, match="no such option") as caught:
        engine_args({name: 1})
    assert caught.value.where == name
    assert hint in caught.value.hint


def test_decided_is_decided(tiny_config: ModelConfig) -> None:
    """A part changes an option under the others after start."""
    with pytest.raises(FrozenInstanceError):
        resolve(EngineArgs(), tiny_config, PLAIN).device = "cuda"  # type: ignore[misc]


def test_drafts_of_a_model_that_has_none(tiny_config: ModelConfig) -> None:
    """Drafts are asked for, and a model without a draft module generates without a word."""
    model = replace(tiny_config, num_nextn_predict_layers=0)
    for args in (EngineArgs(), EngineArgs(draft_schedule="off"), EngineArgs(accept="coupled")):
        found = resolve(args, model, PLAIN)
        assert (found.draft_schedule, found.num_drafts) == ("off", 0)
    for asked, where in (
        ({"draft_schedule": "fixed"}, "draft_schedule"),
        ({"draft_schedule": "confidence"}, "draft_schedule"),
        ({"num_drafts": 3}, "num_drafts"),
    ):
        with pytest.raises(ConfigError, match="no draft module") as caught:
            resolve(EngineArgs(**asked), model, PLAIN)
        assert caught.value.where == where


def test_number_of_drafts(tiny_config: ModelConfig) -> None:
    """Another number of drafts than asked for, or some where there should be none."""
    for asked in (1, 4, 5):
        assert resolve(EngineArgs(num_drafts=asked), tiny_config, PLAIN).num_drafts == asked
    assert resolve(EngineArgs(draft_schedule="off"), tiny_config, PLAIN).num_drafts == 0
    short = replace(tiny_config, dspark_block_size=3)
    assert resolve(EngineArgs(), short, PLAIN).num_drafts == 3
    with pytest.raises(ConfigError):
        resolve(EngineArgs(num_drafts=4), short, PLAIN)
