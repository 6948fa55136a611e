"""The stages of starting: their order, the choice of model and device, and what is refused when."""

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deepinfer.config.engine import EngineArgs
from deepinfer.config.machine import usable_device
from deepinfer.engine import loading, machine
from deepinfer.engine.loading import load_model
from deepinfer.engine.machine import this_machine
from deepinfer.errors import CheckpointError, ConfigError

Lines = list[str]
REPLAY = "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE"
KEEP_TOKENS = "DEEPINFER_YOCO_PREFILL_KEEP_TOKENS"


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No GPU, no setting of the one who runs this, an empty home and working folder."""
    for name in ("DEEPINFER_HF_MODEL_DIR", "DEEPINFER_ACCELERATOR", REPLAY, KEEP_TOKENS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr("deepinfer.engine.default_model.demo_folder", lambda: None)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights fails the test."""

    def read(*_args: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "open_checkpoint", read)


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for the model, and with it a download, fails the test."""

    def find(*_args: object, **_options: object) -> None:
        raise AssertionError("the model was looked for")

    monkeypatch.setattr(loading, "find_model", find)


def failing_import(error: Exception) -> Callable[[str], None]:
    def import_module(name: str) -> None:
        assert name == "torch_npu"
        raise error

    return import_module


def test_everything_is_there(tiny_dir: Path) -> None:
    """A part of the loaded model is of another folder, or in another type, than asked for."""
    model = load_model(str(tiny_dir), EngineArgs(dtype="float32", weight_dtype="bfloat16"))
    assert model.folder == tiny_dir
    assert model.options.device == "cpu"
    assert model.config.vocab_size == 512
    assert model.tokenizer.vocab_len == 512
    network = model.engine.worker.network
    assert network.head.weight.dtype == torch.bfloat16
    assert not network.training
    assert torch.get_num_threads() == model.options.num_threads == 1


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    "option",
    [
        {"device": "cuda"},
        {"device": "npu"},
        {"device": "gpu"},
        {"dtype": "fp32"},
        {"weight_dtype": "fp8"},
        {"act_quant": "on"},
        {"max_model_len": 10**9},
        {"num_threads": 0},
        {"keep_tokens": 21, "replay": "mask"},
    ],
    ids=str,
)
def test_options_are_checked_before_weights_are_read(
    option: dict[str, Any], tiny_dir: Path
) -> None:
    """N11: weights load for minutes, and then a wrong option is found."""
    with pytest.raises(ConfigError) as caught:
        load_model(str(tiny_dir), EngineArgs(**option))
    assert caught.value.where == next(iter(option))


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize(
    "option",
    [
        {"device": "cuda"},
        {"device": "npu"},
        {"device": "gpu"},
        {"dtype": "fp32"},
        {"replay": "half"},
    ],
    ids=str,
)
def test_options_are_checked_before_a_download(option: dict[str, Any]) -> None:
    """N11: gigabytes are downloaded for a machine that cannot run them."""
    with pytest.raises(ConfigError) as caught:
        load_model("owner/name", EngineArgs(**option))
    assert caught.value.where == next(iter(option))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    "error", [ImportError("none"), OSError("libascend.so"), RuntimeError("driver")], ids=repr
)
def test_npu_that_does_not_come_up(
    error: Exception, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11: a missing torch_npu, or one without its driver, ends in a trace of somebody else."""
    monkeypatch.setattr(machine, "import_module", failing_import(error))
    with pytest.raises(ConfigError) as caught:
        load_model(str(tiny_dir), EngineArgs(device="npu"))
    assert caught.value.where == "device"
    assert "torch_npu" in caught.value.hint


@pytest.mark.parametrize("available", [True, False])
def test_npu_is_asked_whether_it_is_there(available: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch_npu is installed on a machine without an NPU, and is believed."""
    monkeypatch.setattr(machine, "import_module", lambda name: None)
    npu = SimpleNamespace(is_available=lambda: available)
    monkeypatch.setattr(torch, "npu", npu, raising=False)
    assert this_machine("npu").has_npu is available


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_npu_is_not_looked_for_unasked(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing torch_npu changes torch for everybody, asked or not."""
    monkeypatch.setattr(machine, "import_module", failing_import(AssertionError("imported")))
    assert this_machine(device).has_npu is False


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(("name", "needs"), [("nvidia", "NVIDIA GPU"), ("ascend", "torch_npu")])
def test_accelerator_of_the_environment(
    name: str, needs: str, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accelerator named in the environment is ignored, and the CPU works for hours."""
    monkeypatch.setattr(machine, "import_module", failing_import(ImportError("none")))
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", name)
    with pytest.raises(ConfigError, match="device") as caught:
        load_model(str(tiny_dir), EngineArgs())
    assert needs in caught.value.hint


def test_option_wins_over_the_environment(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment overrules what the caller says."""
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", "nvidia")
    monkeypatch.setenv("DEEPINFER_HF_MODEL_DIR", "no/such/folder")
    model = load_model(str(tiny_dir), EngineArgs(device="cpu"))
    assert (model.folder, model.options.device) == (tiny_dir, "cpu")


def test_cpu_of_the_environment(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU uses it although the environment says cpu."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("DEEPINFER_ACCELERATOR", "cpu")
    assert load_model(str(tiny_dir), EngineArgs()).options.device == "cpu"


def test_model_of_the_environment(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder named in the environment is ignored, and a random toy answers."""
    monkeypatch.setenv("DEEPINFER_HF_MODEL_DIR", str(tiny_dir))
    lines: Lines = []
    assert load_model(None, EngineArgs(), report=lines.append).folder == tiny_dir
    assert lines == []


def test_warnings_are_reported(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no effect is never said."""
    monkeypatch.setenv("DEEPINFER_GC_INTERVAL_STEP", "5")
    lines: Lines = []
    load_model(str(tiny_dir), EngineArgs(), report=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("warning: environment DEEPINFER_GC_INTERVAL_STEP")


@pytest.mark.usefixtures("no_search")
def test_refused_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that would change the answer is refused after the download."""
    monkeypatch.setenv("DEEPINFER_FORCE_LOAD_BALANCE", "1")
    with pytest.raises(ConfigError, match="DEEPINFER_FORCE_LOAD_BALANCE"):
        load_model("owner/name", EngineArgs())


@pytest.mark.parametrize(
    ("options", "kept"), [({}, 30), ({"keep_tokens": 40}, 40), ({"replay": "off"}, None)], ids=str
)
def test_replay_of_the_environment(
    options: dict[str, Any], kept: int | None, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay of the environment never reaches the engine, or wins over an option."""
    assert load_model(str(tiny_dir), EngineArgs()).engine.keep_tokens is None
    monkeypatch.setenv(REPLAY, "mask")
    monkeypatch.setenv(KEEP_TOKENS, "30")
    assert load_model(str(tiny_dir), EngineArgs(**options)).engine.keep_tokens == kept


def test_no_model_is_a_toy_and_says_so(tmp_path: Path) -> None:
    """Random text passes for the model's."""
    lines: Lines = []
    model = load_model(None, EngineArgs(), report=lines.append)
    assert "RANDOM TOY" in lines[0]
    assert model.folder.is_relative_to(tmp_path / "home")


def test_damaged_folder(tiny_dir: Path, tmp_path: Path) -> None:
    """O05: a missing file is found by torch, not by us."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_dir / name).read_bytes())
    with pytest.raises(CheckpointError):
        load_model(str(tmp_path), EngineArgs())


def broken_init() -> None:
    raise RuntimeError("CUDA driver initialization failed, you might not have a CUDA gpu.\nmore")


def old_driver() -> bool:
    warnings.warn(
        "The NVIDIA driver on your system is too old (found version 11040).", stacklevel=1
    )
    return False


@pytest.mark.parametrize(
    ("is_available", "reason"),
    [(old_driver, "driver on your system is too old"), (lambda: True, "initialization failed")],
)
def test_why_no_gpu(
    monkeypatch: pytest.MonkeyPatch, is_available: Callable[[], bool], reason: str
) -> None:
    """A wrong driver or a lost device is found after the weights are read, or looks like no GPU."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", is_available)
    monkeypatch.setattr(torch.cuda, "get_device_capability", broken_init)
    with pytest.raises(ConfigError, match=reason) as found:
        usable_device("cuda", this_machine("cuda"))
    assert "\n" not in found.value.what
    assert usable_device("auto", this_machine("auto")) == "cpu"
