"""The environment: what is honoured works, what is not is refused or warned of, by name."""

from pathlib import Path

import pytest

from deepinfer.config.engine import EngineArgs
from deepinfer.config.env import Environment, read_environment
from deepinfer.config.env_names import ENV_NAMES, EnvName
from deepinfer.engine.machine import with_environment
from deepinfer.errors import ConfigError

DOCUMENT = Path(__file__).parents[3] / "docs" / "environment.md"
REFUSED = [row for row in ENV_NAMES if row.status == "refused"]
NOT_NEEDED = [row for row in ENV_NAMES if row.status == "not needed"]
# Values that ask for something else than "off", whatever the name.
STRONG_VALUES = ("1.5", "yes", "mask", "7,10..12")


def by_name(row: EnvName) -> str:
    return row.name


def test_empty_environment_says_nothing() -> None:
    """A default sneaks in where the user said nothing."""
    assert read_environment({"PATH": "/bin"}) == Environment(None, None, ())


@pytest.mark.parametrize("accelerator", ["nvidia", "ascend", "cpu"])
def test_honoured_names(accelerator: str) -> None:
    """An honoured name is read under another spelling, or not at all."""
    found = read_environment(
        {"DEEPINFER_HF_MODEL_DIR": "models/x", "DEEPINFER_ACCELERATOR": accelerator}
    )
    assert found == Environment(Path("models/x"), accelerator, ())


@pytest.mark.parametrize("value", ["NVIDIA", "cuda", "0", " cpu"])
def test_bad_value_of_an_honoured_name(value: str) -> None:
    """A misspelt accelerator falls back to the default in silence."""
    with pytest.raises(ConfigError, match="nvidia, ascend or cpu") as caught:
        read_environment({"DEEPINFER_ACCELERATOR": value})
    assert caught.value.where == "environment DEEPINFER_ACCELERATOR"


def test_replay() -> None:
    """The names of replay are read in part, or one mode passes for another."""
    mode, keep = (f"DEEPINFER_YOCO_PREFILL_{end}" for end in ("TRUNCATION_MODE", "KEEP_TOKENS"))
    found = read_environment({mode: "mask", keep: "150"})
    assert found == Environment(replay="mask", keep_tokens=150)
    assert read_environment({mode: "compact"}).replay == "compact"
    assert read_environment({mode: "off", keep: "0"}) == Environment(replay="off", keep_tokens=0)
    for name, value in ((mode, "on"), (mode, "1"), (keep, "-1"), (keep, "many")):
        with pytest.raises(ConfigError, match=value) as caught:
            read_environment({name: value})
        assert caught.value.where == f"environment {name}"
        assert ("mask" in caught.value.hint) == (name == mode)


@pytest.mark.parametrize(
    ("num_drafts", "by_confidence", "schedule", "number"),
    [
        ("", "", None, None),
        ("0", "1", "off", 0),
        ("3", "", "fixed", 3),
        ("3", "0", "fixed", 3),
        ("", "0", None, None),
        ("", "yes", "confidence", None),
        ("2", "1", "confidence", 2),
    ],
)
def test_drafts(
    num_drafts: str, by_confidence: str, schedule: str | None, number: int | None
) -> None:
    """The names of drafts are read in part, or "no drafts" loses against how to verify them."""
    found = read_environment(
        {
            "DEEPINFER_USE_NEXTN_DECODE": num_drafts,
            "DEEPINFER_ENABLE_MTP_VARLEN": by_confidence,
        }
    )
    assert (found.draft_schedule, found.num_drafts) == (schedule, number)


def test_temperatures_and_step_times() -> None:
    """One temperature stands for five, a 0 divides, or the folder of step times is forgotten."""
    name = "DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE"
    assert read_environment({}).confidence_temperatures == (1.0,)
    assert read_environment({name: "0.5"}).confidence_temperatures == (0.5,)
    assert read_environment({name: "1,0,2"}).confidence_temperatures == (1.0, 1e-5, 2.0)
    for bad in ("hot", "1,,2", "-1", "nan"):
        with pytest.raises(ConfigError) as caught:
            read_environment({name: bad})
        assert caught.value.where == f"environment {name}"
    prefix = "DEEPINFER_DECODE_PERF_CACHE_"
    found = read_environment({prefix + "DIR": "x/y", prefix + "TTL_SEC": "60"})
    assert (found.curve_dir, found.curve_ttl_s) == (Path("x/y"), 60.0)


@pytest.mark.parametrize("row", REFUSED, ids=by_name)
@pytest.mark.parametrize("value", STRONG_VALUES)
def test_refused_by_name(row: EnvName, value: str) -> None:
    """A setting that would change the answer is ignored."""
    with pytest.raises(ConfigError, match=value) as caught:
        read_environment({row.name: value})
    assert caught.value.where == f"environment {row.name}"
    assert caught.value.hint


@pytest.mark.parametrize("row", REFUSED, ids=by_name)
def test_accepted_values_of_refused_names(row: EnvName) -> None:
    """A script that switches off what is off anyway does not start."""
    for value in (*row.accepted, ""):
        assert read_environment({row.name: value}) == Environment(None, None, ())


@pytest.mark.parametrize("name", ["COMPUTE_SUM_SMALLER_PROBS"])
@pytest.mark.parametrize("value", ["off", "no", "FALSE", "1"])
def test_bool_rule(name: str, value: str) -> None:
    """Only 0, empty, false and False are no: "off" and "FALSE" are yes to DeepInfer, and to us."""
    with pytest.raises(ConfigError):
        read_environment({f"DEEPINFER_{name}": value})


@pytest.mark.parametrize("row", NOT_NEEDED, ids=by_name)
def test_not_needed_warns(row: EnvName) -> None:
    """A user tunes what is not there and never hears of it, or cannot start because of it."""
    for value in ("0", "1", "anything"):
        (warning,) = read_environment({row.name: value}).warnings
        assert row.name in warning
        assert row.reason in warning
    assert read_environment({row.name: ""}).warnings == ()


def test_unknown_name_is_refused_with_the_nearest() -> None:
    """A typing mistake in a name is a setting silently ignored."""
    with pytest.raises(ConfigError) as caught:
        read_environment({"DEEPINFER_ACELERATOR": "cpu"})
    assert caught.value.where == "environment DEEPINFER_ACELERATOR"
    assert "DEEPINFER_ACCELERATOR" in caught.value.hint
    with pytest.raises(ConfigError, match=r"environment\.md"):
        read_environment({"DEEPINFER_" + "Q" * 20: "1"})


def test_names_of_others_are_left_alone() -> None:
    """We refuse to start because of a name that is none of our business."""
    assert read_environment({"ASCEND_HOME_PATH": "1", "XDEEPINFER_A": "1"}).warnings == ()


def test_no_name_twice() -> None:
    """The second row of a name is never looked at."""
    assert len({row.name for row in ENV_NAMES}) == len(ENV_NAMES)


def test_document_shows_every_row() -> None:
    """docs/environment.md and the code drift apart."""
    lines = [
        line for line in DOCUMENT.read_text().splitlines() if line.startswith(("| DEEP", "| ASC"))
    ]
    assert lines == [document_line(row) for row in ENV_NAMES]


def document_line(row: EnvName) -> str:
    accepted = ", ".join(row.accepted) or ("none" if row.status == "refused" else "any")
    return f"| {row.name} | {row.status} | {accepted} | {row.reason} |"


@pytest.mark.parametrize(
    ("value", "invariant", "on_device"),
    [("1", True, True), ("0", None, False), ("false", None, False), ("", None, None)],
)
def test_names_of_a_gpu(value: str, invariant: bool | None, on_device: bool | None) -> None:
    """A script's "no" switches off on a CPU what is free there, or its "yes" is lost."""
    seen = read_environment(
        {
            "DEEPINFER_BATCH_INVARIANT": value,
            "DEEPINFER_ENFORCE_EAGER": value,
            "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": value,
        }
    )
    assert (seen.batch_invariant, seen.engram_on_device) == (invariant, on_device)
    args = with_environment(EngineArgs(), seen)
    assert args.batch_invariant == invariant
    assert args.enforce_eager == on_device
    assert args.engram_memory == ("device" if on_device else "auto")
    said = EngineArgs(batch_invariant=False, engram_memory="file")
    kept = with_environment(said, seen)
    assert (kept.batch_invariant, kept.engram_memory) == (False, "file")
