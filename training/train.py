"""Trains one stage, or a part of it, within a budget of time, and leaves a state to go on from.

    python -m training.train --stage pretrain --data ROWS --tokenizer FOLDER --minutes 5 --out OUT

Knows the clock, files and the command line; what a step does is in `stages.py`.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from deepinfer.config.model import parse_model_config
from training.config import demo_config, token_map_of
from training.draft import calibration_error, fit_confidence, leading
from training.feed import Feed
from training.optimizer import Rates, decay_factor
from training.recorded import RecordedStep, to_device
from training.stages import STAGES, Trainer, make_master, make_trainer
from training.state import Progress, load_state, save_state

LOG_FILE = "log.jsonl"
LOG_EVERY = 20
_FIT_BATCHES, _CALIBRATION_BATCHES = 24, 8


@dataclass(frozen=True)
class Budget:
    """How long a stage takes in all, and how much of that this run may spend; seconds, or steps
    where a run must be the same every time.
    """

    whole: float
    part: float
    in_steps: bool

    def spent(self, num_steps: int, seconds: float) -> float:
        """What this run has used."""
        return num_steps if self.in_steps else seconds


def train(given: argparse.Namespace) -> Progress:
    """Run until the budget is spent; write state and log to `given.out`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    config = parse_model_config(demo_config(given.tokenizer, tiny=given.tiny))
    token_map = token_map_of(config, given.tokenizer)
    stage = STAGES[given.stage]
    master = make_master(config, token_map, device, compiled=given.compile)
    progress = load_state(given.resume, master) if given.resume else Progress()
    if progress.stage != given.stage:
        progress.stage, progress.spent = given.stage, 0.0
    feed = Feed(given.data, progress.used)
    rates = Rates(matrix=given.matrix_rate, other=given.other_rate)
    trainer = make_trainer(stage, master, rates, compiled=given.compile, seed=progress.step)
    budget = Budget(
        whole=given.whole_steps or given.steps or 60 * (given.whole_minutes or given.minutes),
        part=given.steps or 60 * given.minutes,
        in_steps=bool(given.steps),
    )
    given.out.mkdir(parents=True, exist_ok=True)
    with (given.out / LOG_FILE).open("a", encoding="utf-8") as log:
        spent = _loop(trainer, feed, budget, progress, given, log)
        if stage.drafts:
            _calibrate(trainer, feed, given.tokens, log)
    progress.spent += spent
    progress.used = feed.used
    save_state(given.out, master, progress)
    return progress


def _loop(
    trainer: Trainer,
    feed: Feed,
    budget: Budget,
    progress: Progress,
    given: argparse.Namespace,
    log: Any,
) -> float:
    """Steps until the part of the budget is spent; how much it took."""
    take_step = RecordedStep(trainer, device_of(trainer))
    start = lap = time.monotonic()
    number, sums, lap_tokens, spent = 0, {}, 0, 0.0
    while spent < budget.part:
        batch = feed.take(given.tokens)
        share = min(1.0, (progress.spent + spent) / budget.whole)
        factor = decay_factor(share, number, trainer.stage.decay_from, given.warm_up)
        for name, value in take_step(batch, factor).items():
            sums[name] = sums.get(name, 0.0) + value
        number, progress.step = number + 1, progress.step + 1
        lap_tokens += batch.token_ids.numel()
        if number % LOG_EVERY == 0:
            line = {name: round(float(value) / LOG_EVERY, 4) for name, value in sums.items()}
            seconds = time.monotonic() - lap
            line |= {
                "stage": progress.stage,
                "step": progress.step,
                "progress": round(share, 4),
                "factor": round(factor, 4),
                "tokens_per_s": round(lap_tokens / seconds),
            }
            _write(log, line)
            lap, sums, lap_tokens = time.monotonic(), {}, 0
        spent = budget.spent(number, time.monotonic() - start)
    return spent


def _calibrate(trainer: Trainer, feed: Feed, num_tokens: int, log: Any) -> None:
    """Fit the confidence head once more, to rows not trained on yet, and measure it on others."""
    name = "draft.confidence_head.proj.weight"
    values = trainer.master.values[name]
    judged = _judged(trainer, feed, num_tokens, _FIT_BATCHES)
    values.copy_(fit_confidence(judged.evidence, judged.is_right, values[0])[None])
    trainer.master.refresh(quantise=trainer.stage.quantise, only=name)
    judged = _judged(trainer, feed, num_tokens, _CALIBRATION_BATCHES)
    line = {
        "stage": "calibration",
        "leading_drafts": round(judged.num_leading, 3),
        "calibration_error": round(calibration_error(judged.confidence, judged.is_right), 4),
    }
    _write(log, line)


class _Judged(NamedTuple):
    """Of the drafts that count in some batches: as of `Lesson`, and mean leading drafts."""

    confidence: torch.Tensor
    evidence: torch.Tensor
    is_right: torch.Tensor
    num_leading: float


@torch.no_grad()
def _judged(trainer: Trainer, feed: Feed, num_tokens: int, num_batches: int) -> _Judged:
    parts, num_leading = [], 0.0
    for _ in range(num_batches):
        drawn = trainer.draw(feed.take(num_tokens), 1.0)
        lesson = trainer.lesson(to_device(drawn, torch.device(device_of(trainer))))
        # Only what counts is kept: the evidence of all would be gigabytes.
        kept = (lesson.confidence, lesson.evidence, lesson.is_right)
        parts.append([part[lesson.counts] for part in kept])
        num_leading += float(leading(lesson)) / num_batches
    return _Judged(*(torch.cat(part) for part in zip(*parts, strict=True)), num_leading)


def device_of(trainer: Trainer) -> str:
    """Where the master weights are."""
    return next(iter(trainer.master.values.values())).device.type


def _write(log: Any, line: dict[str, Any]) -> None:
    text = json.dumps(line)
    log.write(text + "\n")
    log.flush()
    print(text, flush=True)  # noqa: T201 (a program of its own)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a stage of the demo model.")
    parser.add_argument("--stage", choices=list(STAGES), required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz rows")
    parser.add_argument("--tokenizer", type=Path, help="folder of tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path, help="a state to go on from")
    parser.add_argument("--minutes", type=float, default=1.0, help="of this run")
    parser.add_argument("--whole-minutes", type=float, help="of the stage, in all its runs")
    parser.add_argument("--steps", type=int, help="of this run, instead of minutes")
    parser.add_argument("--whole-steps", type=int)
    parser.add_argument("--tokens", type=int, default=32_768, help="of a step")
    parser.add_argument("--warm-up", type=int, default=40, help="steps until the full rate")
    parser.add_argument("--matrix-rate", type=float, default=Rates.matrix)
    parser.add_argument("--other-rate", type=float, default=Rates.other)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--tiny", action="store_true", help="a minute on a CPU")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True
    train(parse())
