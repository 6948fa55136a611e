"""What a user asks for (`EngineArgs`, all optional) and what will be done (`EngineConfig`, all
decided).

`resolve` is pure: the machine's facts are passed in. The table `X.
"""

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, get_args

from deepinfer.config.model import ModelConfig
from deepinfer.config.words import ActQuant, Device, Dtype, WeightDtype
from deepinfer.errors import ConfigError

# Below this width a matrix product ends sooner than a second thread could join it.
_ONE_THREAD_BELOW_HIDDEN = 1024


@dataclass(frozen=True)
class EngineArgs:
    """What a user says.

    device: where to run; auto takes a GPU that torch can use, else the CPU.
    dtype: what is computed in.
    weight_dtype: how weights are kept; auto keeps them as they are computed with.
    act_quant: fp8 adds the release's rounding of activations before FP8 and FP4 weights.
    max_model_len: most tokens of prompt and output together; None is what the checkpoint allows.
    num_threads: CPU threads; None chooses by the model's width.
    """

    device: Device = "auto"
    dtype: Dtype = "bfloat16"
    weight_dtype: WeightDtype = "auto"
    act_quant: ActQuant = "off"
    max_model_len: int | None = None
    num_threads: int | None = None


@dataclass(frozen=True)
class EngineConfig:
    """What will be done. Nothing is optional; never changed after `resolve`."""

    device: str
    dtype: str
    weight_dtype: str
    act_quant: ActQuant
    max_model_len: int
    num_threads: int


@dataclass(frozen=True)
class Machine:
    """The facts about the machine that `resolve` needs."""

    has_cuda: bool
    has_npu: bool
    num_cpus: int


def engine_args(options: dict[str, Any]) -> EngineArgs:
    """EngineArgs from keyword options. Raises ConfigError for a name that does not exist."""
    known = [f.name for f in fields(EngineArgs)]
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise ConfigError(
                "no such option",
                where=name,
                hint=f"did you mean {near[0]}?" if near else f"options are: {', '.join(known)}",
            )
    return EngineArgs(**options)


def resolve(args: EngineArgs, model: ModelConfig, machine: Machine) -> EngineConfig:
    """Decide every option. Raises ConfigError for a value that cannot be honoured here."""
    for name, words in (
        ("device", Device),
        ("dtype", Dtype),
        ("weight_dtype", WeightDtype),
        ("act_quant", ActQuant),
    ):
        value = getattr(args, name)
        if value not in get_args(words):
            expected = ", ".join(get_args(words))
            raise ConfigError(
                f"found {value!r}, expected one of {expected}",
                where=name,
                hint="correct the option",
            )
    return EngineConfig(
        device=_device(args.device, machine),
        dtype=args.dtype,
        weight_dtype=args.dtype if args.weight_dtype == "auto" else args.weight_dtype,
        act_quant=args.act_quant,
        max_model_len=_bounded(
            "max_model_len",
            args.max_model_len,
            model.max_position_embeddings,
            2,
            model.max_position_embeddings,
        ),
        num_threads=_bounded(
            "num_threads",
            args.num_threads,
            1 if model.hidden_size < _ONE_THREAD_BELOW_HIDDEN else machine.num_cpus,
            1,
            1024,
        ),
    )


def _device(wanted: str, machine: Machine) -> str:
    if wanted == "auto":
        return "cuda" if machine.has_cuda else "cpu"
    missing = (wanted == "cuda" and not machine.has_cuda) or (
        wanted == "npu" and not machine.has_npu
    )
    if missing:
        package = {
            "cuda": "a CUDA build of torch and an NVIDIA GPU",
            "npu": "torch_npu and an Ascend NPU",
        }
        raise ConfigError(
            f"{wanted} was asked for, but this Python sees none",
            where="device",
            hint=f"it needs {package[wanted]}; device=cpu runs anywhere",
        )
    return wanted


def _bounded(name: str, value: object, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(
            f"found {value!r}, expected a whole number from {low} to {high}",
            where=name,
            hint="leave it out for the default",
        )
    return value
