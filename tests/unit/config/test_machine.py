"""Which device and whose kernels, and why not others."""

from dataclasses import replace

import pytest

from deepinfer.config.engine import EngineArgs, resolve
from deepinfer.config.layers import hold_layers, plan_layers
from deepinfer.config.machine import Machine, choose_kernels, usable_device
from deepinfer.config.model import ModelConfig
from deepinfer.errors import ConfigError

PLAIN = Machine(has_cuda=False, has_npu=False, num_cpus=6, memory_bytes=8000)
HOPPER = replace(PLAIN, has_cuda=True, cuda_capability=(9, 0), has_triton=True)


def test_why_there_is_no_gpu() -> None:
    """A driver that is too old reads as a machine without a GPU."""
    old = replace(PLAIN, cuda_reason="the NVIDIA driver on your system is too old")
    with pytest.raises(ConfigError, match=r"sees none: the NVIDIA driver .* too old"):
        usable_device("cuda", old)


@pytest.mark.parametrize(
    ("device", "dtype", "weight_dtype", "machine", "kernels", "why"),
    [
        ("cpu", "bfloat16", "auto", HOPPER, "reference", ""),
        ("cuda", "bfloat16", "auto", HOPPER, "triton", ""),
        ("cuda", "bfloat16", "auto", replace(HOPPER, cuda_capability=(10, 0)), "reference", "10.0"),
        ("cuda", "bfloat16", "auto", replace(HOPPER, cuda_capability=(8, 0)), "reference", "8.0"),
        ("cuda", "bfloat16", "auto", replace(HOPPER, cuda_capability=(12, 0)), "reference", "12.0"),
        ("cuda", "bfloat16", "auto", replace(HOPPER, cuda_capability=(7, 5)), "reference", "7.5"),
        ("cuda", "bfloat16", "auto", replace(HOPPER, has_triton=False), "reference", "nvidia"),
        ("cuda", "float32", "auto", HOPPER, "reference", "bfloat16"),
        ("cuda", "bfloat16", "float32", HOPPER, "reference", "as released"),
    ],
)
def test_kernels(
    device: str, dtype: str, weight_dtype: str, machine: Machine, kernels: str, why: str
) -> None:
    """A GPU runs the slow kernels without a word, or fast ones that it cannot run."""
    found, slow = choose_kernels(device, dtype, weight_dtype, machine)
    assert found == kernels
    assert why in slow
    assert bool(why) == bool(slow)


def test_batch_invariance_of_a_gpu(tiny_config: ModelConfig) -> None:
    """It is promised where no kernel keeps it, or off where nobody asked for its price."""
    assert resolve(EngineArgs(batch_invariant=True), tiny_config, HOPPER).batch_invariant
    assert not resolve(EngineArgs(), tiny_config, HOPPER).batch_invariant
    assert resolve(EngineArgs(), tiny_config, PLAIN).batch_invariant
    with pytest.raises(ConfigError, match=r"float32|bfloat16") as found:
        resolve(EngineArgs(batch_invariant=True, dtype="float32"), tiny_config, HOPPER)
    assert found.value.where == "batch_invariant"


def test_expert_shard(tiny_config: ModelConfig) -> None:
    """A share that the draft module's experts cannot be cut into fails in mid-load."""
    assert resolve(EngineArgs(expert_shard="1/2"), tiny_config, PLAIN).expert_shard == (1, 2)
    odd = replace(tiny_config, dspark_n_routed_experts=tiny_config.n_routed_experts + 1)
    with pytest.raises(ConfigError, match=r"divisor of 1$|divisor of 1\b"):
        resolve(EngineArgs(expert_shard="0/2"), odd, PLAIN)


def test_layers(tiny_config: ModelConfig) -> None:
    """Layers without what they read fail in mid-step; and drafts of features that nobody makes."""
    held = hold_layers(tiny_config, "4:6")
    assert [plan.layer_id for plan in plan_layers(held)] == [4, 5]
    assert held.num_nextn_predict_layers == 0
    assert hold_layers(tiny_config, "6:10").num_nextn_predict_layers == 3
    assert hold_layers(tiny_config, None) is tiny_config
    with pytest.raises(ConfigError, match="layer 5 reads what layer 4 makes") as found:
        hold_layers(tiny_config, "5:6")
    assert found.value.where == "layers"
