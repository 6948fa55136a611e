"""What a step costs: arithmetic and memory of a token, counted; tokens a second, measured.

    python -m training.measure --count               on any machine, in seconds
    python -m training.measure --seconds 60          a smoke run of every way to run a step

Knows nothing of data: rows are random tokens.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from deepinfer.config.model import ModelConfig, parse_model_config
from training.config import demo_config, token_map_of
from training.feed import Batch
from training.recorded import RecordedStep
from training.stages import STAGES, Trainer, make_master, make_trainer

H200_FLOPS = 990e12  # dense bfloat16, by the data sheet
UTILISATION = 0.25


class Way(NamedTuple):
    """One way to run a step."""

    stage: str
    compiled: bool
    num_tokens: int
    length: int


WAYS = (
    Way("pretrain", False, 32_768, 512),
    Way("pretrain", True, 32_768, 512),
    Way("distill", True, 32_768, 512),
    Way("distill", True, 32_768, 2048),
    Way("draft", True, 32_768, 512),
)


def fresh_trainer(config: ModelConfig, way: Way, device: str) -> Trainer:
    """Fresh weights and everything that a step of this way needs."""
    master = make_master(config, token_map_of(config, None), device, compiled=way.compiled)
    return make_trainer(STAGES[way.stage], master, compiled=way.compiled)


def random_batch(config: ModelConfig, num_tokens: int, length: int) -> Batch:
    """Rows of random tokens, all of them targets."""
    shape = (max(1, num_tokens // length), length)
    token_ids = torch.randint(3, config.vocab_size, shape)
    return Batch(token_ids, torch.ones(shape, dtype=torch.bool))


class _SavedBytes:
    """Adds up what autograd keeps for the backward, each storage once."""

    def __init__(self) -> None:
        self.storages: dict[int, int] = {}

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """The hook: called with every tensor that is kept."""
        storage = tensor.untyped_storage()
        self.storages[storage.data_ptr()] = storage.nbytes()
        return tensor


@contextlib.contextmanager
def counting_saved_bytes() -> Iterator[_SavedBytes]:
    """Count what is kept while the context lasts."""
    saved = _SavedBytes()
    with torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda kept: kept):
        yield saved


def count(config: ModelConfig, stage: str, length: int) -> dict[str, Any]:
    """Of one row of `length` tokens, on the CPU in float32; bytes are halved for bfloat16."""
    trainer = fresh_trainer(config, Way(stage, False, length, length), "cpu")
    batch = random_batch(config, length, length)
    with FlopCounterMode(display=False) as flops, counting_saved_bytes() as saved:
        trainer.step(trainer.draw(batch, 1.0))
    weights = sum(values.numel() for values in trainer.master.values.values())
    # Newton-Schulz runs once a step, whatever the number of tokens: not a cost of a token.
    muon = sum(
        5 * (4 * min(s[-2:]) ** 2 * max(s[-2:]) + 2 * min(s[-2:]) ** 3) * n
        for s, n in (
            (shape, len(names) * (shape[0] if len(shape) == 3 else 1))
            for shape, names in trainer.optimizer.groups.items()
        )
    )
    each = (flops.get_total_flops() - muon) / length
    return {
        "stage": stage,
        "length": length,
        "parameters": weights,
        "mflop_per_token": round(each / 1e6, 1),
        "gflop_of_the_optimizer": round(muon / 1e9, 1),
        "saved_kb_per_token": round(sum(saved.storages.values()) / 2 / length / 1e3),
        "tokens_per_s_at_25_percent": round(H200_FLOPS * UTILISATION / each),
    }


def measure(config: ModelConfig, way: Way, seconds: float, device: str) -> dict[str, Any]:
    """Tokens a second over at most `seconds`, after five steps that compile, warm up and record."""
    trainer = fresh_trainer(config, way, device)
    batch = random_batch(config, way.num_tokens, way.length)
    begin = time.monotonic()
    take_step = RecordedStep(trainer, device)
    for _ in range(5):
        loss = float(take_step(batch, 1.0)["loss"])
    ready, number = time.monotonic(), 0
    while time.monotonic() - ready < seconds:
        loss = float(take_step(batch, 1.0)["loss"])
        number += 1
    took = time.monotonic() - ready
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    return way._asdict() | {
        "first_steps_s": round(ready - begin, 1),
        "steps": number,
        "tokens_per_s": round(number * batch.token_ids.numel() / took),
        "loss": round(loss, 4),
        "peak_gb": round(memory / 1e9, 1),
    }


def measure_if_it_fits(
    config: ModelConfig, way: Way, seconds: float, device: str
) -> dict[str, Any]:
    """As `measure`; a way that needs more memory than there is says so."""
    try:
        return measure(config, way, seconds, device)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return way._asdict() | {"error": "out of memory"}


def main() -> int:
    """Count or measure; one line of JSON each."""
    parser = argparse.ArgumentParser(description="What a training step costs.")
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring, in all")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    config = parse_model_config(demo_config(tiny=given.tiny))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if given.count:
        reports = (count(config, stage, n) for stage in STAGES for n in (512, 2048))
    else:
        torch.backends.cuda.matmul.allow_tf32 = True
        each = given.seconds / len(WAYS)
        reports = (measure_if_it_fits(config, way, each, device) for way in WAYS)
    for report in reports:
        print(json.dumps(report), flush=True)  # noqa: T201 (a program of its own)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
