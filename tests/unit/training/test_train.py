"""Stages from the command line to a checkpoint, at a tiny size."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from deepinfer.config.model import parse_model_config
from deepinfer.entrypoints.llm import LLM
from deepinfer.sampling_params import SamplingParams
from tests.unit.training.small import random_ids
from training.config import WEIGHT_BYTES, checkpoint_bytes, demo_config
from training.curves import draw, read_logs
from training.draft import calibration_error, fit_confidence
from training.export import compare, export, load_master
from training.feed import Feed, write_copy_task
from training.train import LOG_FILE, parse, train

LENGTH = 48


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_copy_task(folder / "copy.npz", vocab_size=512, num_rows=64, length=LENGTH)
    return folder


def run(rows: Path, out: Path, stage: str, steps: int, *more: str) -> list[dict]:
    """Train; the lines of the log."""
    command = (
        f"--stage {stage} --data {rows} --out {out} --steps {steps} --tokens 192 --tiny --warm-up 5"
    )
    train(parse([*command.split(), *more]))
    return [json.loads(line) for line in (out / LOG_FILE).read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def pretrained(rows, tmp_path_factory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("pretrained")
    return out, run(rows, out, "pretrain", 40)


@pytest.mark.slow
def test_pretraining_learns(pretrained):
    """A stage runs and teaches nothing."""
    _, (first, last) = pretrained
    assert last["loss"] < first["loss"] - 0.5
    assert last["index_loss"] < first["index_loss"]


@pytest.mark.slow
def test_a_resumed_run_goes_on(pretrained, rows, tmp_path):
    """A piece begins at other weights, other rows or another point of the schedule than the piece
    before it ended with.
    """
    run(rows, tmp_path / "a", "pretrain", 20, "--whole-steps", "40")
    resume = ("--whole-steps", "40", "--resume", str(tmp_path / "a"))
    (resumed,) = run(rows, tmp_path / "b", "pretrain", 20, *resume)
    _, (first, whole) = pretrained
    assert resumed["step"] == 40
    assert resumed["progress"] == pytest.approx(whole["progress"])
    # Moments start anew, so the second half is a little behind; fresh weights would be at `first`.
    assert abs(resumed["loss"] - whole["loss"]) < 0.4 * (first["loss"] - whole["loss"])


@pytest.mark.slow
@pytest.mark.sample
def test_all_stages_then_export(pretrained, rows, tmp_path):
    """The model that is shipped is not the one that was trained, or cannot be loaded."""
    out, _ = pretrained
    run(rows, tmp_path / "distill", "distill", 20, "--resume", str(out))
    steps = ("--resume", str(tmp_path / "distill"), "--tokens", "96")
    first, last, calibration = run(rows, tmp_path / "draft", "draft", 40, *steps)
    assert last["loss"] < first["loss"]
    assert calibration["calibration_error"] > 0

    master, model = load_master(tmp_path / "draft", None, tiny=True), tmp_path / "model"
    backbone = load_master(tmp_path / "distill", None, tiny=True)
    assert all(
        torch.equal(values, backbone.values[name])
        for name, values in master.values.items()
        if not name.startswith("draft.")
    )
    export(master, demo_config(tiny=True), None, model)
    report = compare(master, model, random_ids())
    assert report["close"] > 0.5
    assert report["same_choice"] > 0.98
    with LLM(model, dtype="float32", device="cpu") as llm:
        (output,) = llm.generate(["a b c"], SamplingParams(max_tokens=4))
    assert len(output.outputs[0].token_ids) == 4


def test_the_demo_fits():
    """A checkpoint that the repository has no room for; or so small that a mechanism is missing."""
    config = parse_model_config(demo_config())
    assert WEIGHT_BYTES * 0.98 < checkpoint_bytes(config) <= WEIGHT_BYTES
    assert config.sliding_window < 500
    assert config.index_topk < 500 // 2
    assert config.candidate_topk_blocks * config.candidate_block_size < 500


def test_feed_gives_every_row_once_before_any_again(tmp_path):
    """Rows are skipped, or one length crowds out the other."""
    for length, number in ((16, 40), (32, 20)):
        ids = np.arange(number)[:, None].repeat(length, 1).astype(np.uint16)
        bits = np.packbits(np.ones((number, length), dtype=bool), axis=1)
        np.savez(tmp_path / f"{length}.npz", token_ids=ids, is_target=bits)
    feed, seen = Feed(tmp_path), {16: [], 32: []}
    for _ in range(20):
        batch = feed.take(64)
        assert batch.is_target.all()
        seen[batch.token_ids.shape[1]] += batch.token_ids[:, 0].tolist()
    assert seen == {16: list(range(40)), 32: list(range(20))}
    again = Feed(tmp_path, feed.used).take(64)
    assert again.token_ids[0, 0] == 0


def test_confidence_is_fitted():
    """Confidences that are too sure, or follow the wrong evidence, stay so."""
    generator = torch.Generator().manual_seed(0)
    evidence = torch.randn(20_000, 3, generator=generator)
    weights = torch.tensor([1.0, -0.5, 0.0])
    logits = evidence @ weights
    is_right = torch.rand(20_000, generator=generator) < torch.sigmoid(logits)
    fitted = fit_confidence(evidence, is_right, torch.tensor([5.0, 0.0, 2.0]))
    assert fitted.tolist() == pytest.approx(weights.tolist(), abs=0.06)
    assert calibration_error(evidence @ fitted, is_right) < 0.02
    assert calibration_error(5 * logits, is_right) > 0.1


def test_curves_are_drawn(tmp_path):
    """The picture is empty."""
    line = {"loss": 3.0, "stage": "pretrain", "step": 20, "tokens_per_s": 1000}
    lines = [line, {**line, "step": 40, "loss": 2.0}, {"stage": "calibration", "temperature": 1.0}]
    (tmp_path / LOG_FILE).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    picture = draw(read_logs([tmp_path / LOG_FILE]))
    assert picture.count("<polyline") == 2
