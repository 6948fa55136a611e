"""Drafts at a start: whether they fit the model, and how long steps take on this machine."""

import logging
import math
import os
import time
from functools import partial
from pathlib import Path

import numpy as np

from deepinfer.cache.layout import SLACK_ROWS
from deepinfer.config.engine_config import EngineConfig
from deepinfer.config.env import TEMPERATURES, Environment
from deepinfer.config.model import ModelConfig
from deepinfer.engine.continuation import begin, next_rows, prepare
from deepinfer.engine.drafting import Drafting
from deepinfer.engine.sample_plan import build_sample_plan
from deepinfer.errors import ConfigError
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.draft_pause import DraftPause
from deepinfer.scheduler.step_time import Curve, StepTime, curve_sizes, measure_curve
from deepinfer.scheduler.step_time_cache import curve_key, read_curve, remove_stale, write_curve
from deepinfer.step import StepPlan
from deepinfer.worker.worker import Worker

# Larger steps are guessed by the line through the last two sizes.
_MOST_ROWS = {"cpu": 128}
# Sizes up to this one are measured however long it takes; larger ones while there is time.
_LEAST_ROWS = 8
_TIME_S = 3.0
_CONTEXT = 64  # tokens behind each row: they fit into a block, with all rows of a sequence
_LOG = logging.getLogger("deepinfer")


def check_drafts(model: ModelConfig, options: EngineConfig, seen: Environment) -> None:
    """Refuse what cannot be taken back, and temperatures that do not fit. Raises ConfigError."""
    # The token after the last one that stays looks back over a whole n-gram.
    most = SLACK_ROWS + 1 - model.engram_max_ngram_size
    if options.num_drafts > most:
        raise ConfigError(
            f"found {options.num_drafts}, the model's n-grams of {model.engram_max_ngram_size} "
            f"leave room for {most}",
            where="num_drafts",
            hint="lower it, or set draft_schedule=off",
        )
    count = len(seen.confidence_temperatures)
    if options.num_drafts and count not in (1, options.num_drafts):
        raise ConfigError(
            f"found {count} numbers, expected 1 or num_drafts {options.num_drafts}",
            where=f"environment {TEMPERATURES}",
            hint="give one number for all drafts, or one for each",
        )


def make_drafting(
    worker: Worker, options: EngineConfig, folder: Path, seen: Environment
) -> Drafting:
    """What the engine keeps about drafts; by confidence, with the times of steps.

    folder: of the model. The worker's memory must belong to nobody yet: steps are tried in it.
    """
    if options.draft_schedule != "confidence":
        return Drafting(options.num_drafts, options.accept)
    curve = _start_curve(worker, options, folder, seen)
    _LOG.info("step times, rows: ms: %s", {rows: round(ms, 2) for rows, ms in curve.items()})
    step_time = StepTime(curve, graphs=False)
    return Drafting(options.num_drafts, options.accept, step_time, DraftPause(step_time))


def _start_curve(worker: Worker, options: EngineConfig, folder: Path, seen: Environment) -> Curve:
    """From the cache, or measured now."""
    most = min(
        options.max_num_batched_tokens,
        options.max_num_seqs * (1 + options.num_drafts),
        _MOST_ROWS.get(options.device, 2**20),
    )
    # Each size that one sequence can have: where it runs alone, every row is weighed by itself.
    alone = range(1, min(most, 1 + options.num_drafts) + 1)
    sizes = sorted({*alone, *curve_sizes(most, None)})
    key = curve_key(
        str(folder.resolve()),
        sizes,
        {"data": 1, "context": 1, "experts": 1},
        {
            "device": options.device,
            "dtype": options.dtype,
            "weight_dtype": options.weight_dtype,
            "act_quant": options.act_quant,
            "threads": options.num_threads,
            "machine": os.uname().nodename,
        },
    )
    now_s, ttl_s = time.time(), seen.curve_ttl_s
    if seen.curve_dir is not None:
        remove_stale(seen.curve_dir, ttl_s=ttl_s, now_s=now_s)
        kept = read_curve(seen.curve_dir, key, sizes, ttl_s=ttl_s, now_s=now_s)
        if kept is not None:
            return kept
    curve: Curve = {}
    small = [size for size in sizes if size <= _LEAST_ROWS]
    start = math.inf
    # Then from the largest down: a line between far sizes is a better guess than one drawn beyond.
    for size in (*small, *reversed(sizes[len(small) :])):
        if size > _LEAST_ROWS:
            start = min(start, time.perf_counter())
            if time.perf_counter() - start > _TIME_S:
                break
        num_sequences = 1 if size in alone else min(size, options.max_num_seqs)
        curve |= measure_curve(partial(try_step, worker, num_sequences=num_sequences), [size])
    curve = dict(sorted(curve.items()))
    if seen.curve_dir is not None and list(curve) == sizes:
        write_curve(seen.curve_dir, key, curve, now_s=now_s)
    return curve


def try_step(worker: Worker, num_rows: int, num_sequences: int) -> None:
    """Run so many rows of sequences that nobody has, and draw a token for each; wait for them.

    All of them write to block 0, each to a slot of its own.
    """
    counts = np.full(num_sequences, num_rows // num_sequences, np.int32)
    counts[: num_rows % num_sequences] += 1
    rng = np.random.default_rng(num_rows)  # so that rows go to different experts
    vocab_size = worker.network.setup.config.vocab_size
    nothing = np.empty(0, np.int32)
    worker.launch(
        StepPlan(
            slot_ids=np.arange(num_sequences, dtype=np.int32),
            num_computed=np.full(num_sequences, _CONTEXT, np.int32),
            num_rows=counts,
            block_tables=np.zeros((num_sequences, 1), np.int32),
            decoder_starts=np.zeros(num_sequences, np.int32),
            window_starts=np.zeros(num_sequences, np.int32),
            entry_starts=np.zeros(num_sequences, np.int32),
            token_ids=rng.integers(0, vocab_size, num_rows).astype(np.int32),
            sample_rows=np.arange(num_rows, dtype=np.int32),
            score_rows=nothing,
            score_ids=nothing,
        )
    )
    prepared = prepare(SamplingParams(temperature=0), seed=0, choice=0, eos_ids=[])
    worker.sample(build_sample_plan(next_rows([begin(prepared, [])] * num_rows)))
