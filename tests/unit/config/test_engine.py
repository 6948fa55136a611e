"""`resolve`: every option decided from what was asked, the model and the machine, or refused by
name.
"""

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from deepinfer.config.engine import EngineArgs, EngineConfig, Machine, engine_args, resolve
from deepinfer.config.model import ModelConfig
from deepinfer.errors import ConfigError

PLAIN = Machine(has_cuda=False, has_npu=False, num_cpus=6)
NVIDIA = replace(PLAIN, has_cuda=True)
ASCEND = replace(PLAIN, has_npu=True)

WRONG: dict[str, tuple[Any, ...]] = {
    "device": ("gpu", "CPU", "cuda:0", "", None, 5, [], True),
    "dtype": ("fp32", "float16", "torch.float32", "auto", "", None, 32),
    "weight_dtype": ("fp8", "float16", "", None, 8),
    "act_quant": ("on", "fp4", "", None, False, True),
    "max_model_len": (0, 1, -5, 4097, 10**30, 100.0, "100", True),
    "num_threads": (0, -1, 1025, 2.0, "2", True),
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
        weight_dtype="bfloat16",
        act_quant="off",
        max_model_len=4096,
        num_threads=1,
    )


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


@pytest.mark.parametrize(
    ("dtype", "weight_dtype", "expected"),
    [
        ("bfloat16", "auto", "bfloat16"),
        ("float32", "auto", "float32"),
        ("bfloat16", "float32", "float32"),
        ("float32", "bfloat16", "bfloat16"),
    ],
)
def test_weight_dtype(
    dtype: Any, weight_dtype: Any, expected: str, tiny_config: ModelConfig
) -> None:
    """Weights are kept in another type than asked for, and take twice the memory."""
    found = resolve(EngineArgs(dtype=dtype, weight_dtype=weight_dtype), tiny_config, PLAIN)
    assert (found.dtype, found.weight_dtype) == (dtype, expected)


@pytest.mark.parametrize("asked", [2, 4095, 4096])
def test_max_model_len(asked: int, tiny_config: ModelConfig) -> None:
    """A limit that the checkpoint allows is refused, or another one is kept."""
    assert tiny_config.max_position_embeddings == 4096
    assert resolve(EngineArgs(max_model_len=asked), tiny_config, PLAIN).max_model_len == asked


@pytest.mark.parametrize(
    ("hidden_size", "asked", "expected"), [(96, None, 1), (96, 3, 3), (4096, None, 6), (4096, 1, 1)]
)
def test_num_threads(
    hidden_size: int, asked: int | None, expected: int, tiny_config: ModelConfig
) -> None:
    """A small model is slowed down by threads that wait for each other, a large one starves."""
    model = replace(tiny_config, hidden_size=hidden_size)
    assert resolve(EngineArgs(num_threads=asked), model, PLAIN).num_threads == expected


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
        ("tensor_parallel_size", "options are: device, dtype"),
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
