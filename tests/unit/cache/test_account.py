"""Where the memory goes."""

import logging
from pathlib import Path

import pytest

from deepinfer.cache.account import Account, account_lines
from deepinfer.config.engine import EngineArgs
from deepinfer.config.model import ModelConfig
from deepinfer.engine.loading import load_model
from deepinfer.tools.capacity import plan
from deepinfer.tools.plan import plan_lines


def numbers(lines: list[str]) -> dict[str, int]:
    """The last number of each line of a table, by what comes before it."""
    cells = [line.rsplit(None, 1) for line in lines]
    return {title.strip(): int(number.replace(",", "")) for title, number in cells}


def test_the_sum_is_right() -> None:
    """A11: a part is left out of the sum, or counted twice."""
    found = numbers(list(account_lines(Account(1000, 100, 10, 3, 20, 4, 5, 7))))
    assert sum(found.values()) == 2 * 1000
    assert found["3 blocks of 20"] == 60
    assert found["remain"] == 803


def test_the_plan_and_the_start_say_the_same(
    tiny_dir: Path, tiny_config: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """A11: what `deepinfer plan` promises is not what a start takes."""
    options = EngineArgs(device="cpu", max_num_seqs=3, max_model_len=300, max_num_batched_tokens=18)
    with caplog.at_level(logging.INFO, "deepinfer"):
        loaded = load_model(tiny_dir, options)
    loaded.engine.close()
    start = [record.getMessage() for record in caplog.records]
    first = next(i for i, line in enumerate(start) if line.startswith("bytes of memory"))
    started = numbers(start[first + 1 : first + 8])
    found = plan(tiny_config, started["memory"], 300, 3)
    lines = list(plan_lines(found))
    first = next(i for i, line in enumerate(lines) if line.startswith("bytes of memory"))
    planned = numbers(lines[first + 1 : first + 8])
    assert planned == started
