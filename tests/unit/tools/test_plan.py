"""What a memory holds, against figures made by hand and against what the engine allocates."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deepinfer.cache.layout import pool_sizes
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.errors import ConfigError
from deepinfer.kernels.backends import load_kernels
from deepinfer.tools.capacity import plan
from deepinfer.tools.inspect import GROUPS
from deepinfer.tools.plan import main, parse_bytes, plan_lines
from deepinfer.worker.build import build_dummy
from tests.conftest import RELEASED

GIB = 2**30


def weights(sizes: tuple[int, ...]) -> dict[str, int]:
    return dict(zip((group for group, _ in GROUPS), sizes, strict=True))


def test_released_weights(released_config: ModelConfig) -> None:
    """A11: a group of weights is not counted, and the plan promises memory that is not there."""
    found = plan(released_config, 400 * GIB, 65_536, 1)
    assert sum(found.disk) == 510_286_023_000
    # 40 layers of 384 experts of three products of 5120 x 2304: 4 bits and a byte for every 32.
    values = 40 * 384 * 3 * 5120 * 2304
    packed, plain = weights(found.released.weights), weights(found.plain.weights)
    assert packed["routed experts"] == values // 2 + values // 32
    assert plain["routed experts"] == 2 * values
    assert packed["vision"] == plain["vision"] == 0
    # The tables stay on disk: what is left of Engram are two projections and the gates.
    width = 5 * 5120 * 3 * 8 * 256
    assert packed["Engram"] == 2 * (width + width // 1024 + 2 * 2 * 4 * 5120)
    assert plain["Engram"] == 2 * (2 * width + 2 * 4 * 4 * 5120)
    assert plain["embedding and head"] == 129_280 * 5120 * (2 + 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_weights_are_those_of_the_network(tiny_config: ModelConfig, dtype: Storage) -> None:
    """A11: the engine keeps a weight wider than the plan says."""
    network = build_dummy(
        tiny_config, [0] * tiny_config.vocab_size, load_kernels(), dtype=getattr(torch, dtype)
    )
    held = sum(parameter.nbytes for parameter in network.parameters())
    assert plan(tiny_config, GIB, 100, 1, dtype=dtype).plain.weight_bytes == held


def test_bytes_of_a_token(released_config: ModelConfig) -> None:
    """A11: three sources keep 288 + 68 bytes for two tokens, one keeps them for every token."""
    found = plan(released_config, 400 * GIB, 65_536, 1)
    assert found.released.token_bytes == 3 * (288 + 68) / 2 + 288 + 68 == 890
    assert found.plain.token_bytes == 3200
    assert "a token" + f"{'890.00':>51}" in "\n".join(plan_lines(found))


def test_what_fits(released_config: ModelConfig) -> None:
    """A11: few tokens for the memory: one sequence more, or one block more, would still fit."""
    context, batch = 65_536, 16
    found = plan(released_config, 400 * GIB, context, batch).released
    slot = 43 * 136 * 528 + 3 * 8 * 2 * 512 * 4 + 8 * 4
    block = 890 * 128
    sequence = slot + context // 128 * block
    assert found.left == 400 * GIB - found.weight_bytes
    assert found.max_batch * sequence <= found.left < (found.max_batch + 1) * sequence
    blocks = found.num_tokens // 128
    assert blocks * block + batch * slot <= found.left < (blocks + 1) * block + batch * slot
    assert found.max_context == min(blocks // batch * 128, 1_048_576)


def test_the_engine_agrees(tiny_config: ModelConfig) -> None:
    """A11: the plan says it fits, and the start of the engine says it does not."""
    weights_bytes = plan(tiny_config, GIB, 300, 4).plain.weight_bytes
    budget = 3_000_000
    found = plan(tiny_config, weights_bytes + budget, 300, 4).plain
    sizes = pool_sizes(tiny_config, "bfloat16", budget, 4, 300)
    assert found.num_tokens == sizes.num_tokens
    assert found.left == budget
    longest = found.max_context
    pool_sizes(tiny_config, "bfloat16", budget, 4, longest)


def test_too_small(
    released_json: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A11: less than the weights, and the table counts negative sequences."""
    (tmp_path / "config.json").write_text(json.dumps(released_json))
    assert main(tmp_path, "24GiB", 65_536, 1) == 1
    out = capsys.readouterr().out
    assert "the weights alone need" in out
    assert out.endswith("what was asked does NOT fit\n")
    assert "sequences of 65,536 tokens" + f"{0:>32}{0:>20}" in out


def test_folder_or_file(tiny_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path that a shell completes is refused."""
    assert main(tiny_dir, "1GB", None, 2) == 0
    by_folder = capsys.readouterr().out
    assert main(tiny_dir / "config.json", "1000000000", 4096, 2) == 0
    assert capsys.readouterr().out == by_folder


def test_columns_add_up(released_config: ModelConfig) -> None:
    """A line is left out of the table, and the sum below it is another one's."""
    lines = list(plan_lines(plan(released_config, 2**41, 4096, 4)))
    start = next(i for i, line in enumerate(lines) if line.startswith("bytes of weights")) + 1
    rows = [line[38:].replace(",", "").split() for line in lines[start : start + len(GROUPS) + 1]]
    *parts, total = [[int(cell) for cell in row] for row in rows]
    assert [sum(column) for column in zip(*parts, strict=True)] == total


def test_memory_in_words() -> None:
    """24GiB is read as 24GB, and two gigabytes are missing at night."""
    assert parse_bytes("123") == 123
    assert parse_bytes("24GiB") == 24 * GIB
    assert parse_bytes("1.5 gb") == 1_500_000_000
    assert parse_bytes("80GB") == 80 * 10**9
    assert parse_bytes("2TiB") == 2**41
    assert parse_bytes("9007199254740993") == 9007199254740993  # more than a float holds


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1e9", "12 parsecs", "1,000", "1.5", "٣GB"])
def test_memory_in_other_words(text: str) -> None:
    """A number is guessed from half of what was written."""
    with pytest.raises(ConfigError) as refused:
        parse_bytes(text)
    assert refused.value.where == "--memory"


@pytest.mark.parametrize(
    ("memory", "context", "batch", "where"),
    [
        (0, 1, 1, "--memory"),
        (GIB, 0, 1, "--context"),
        (GIB, 1_048_577, 1, "--context"),
        (GIB, 1, 0, "--batch"),
    ],
)
def test_bounds(
    released_config: ModelConfig, memory: int, context: int, batch: int, where: str
) -> None:
    """A plan for nothing divides by zero."""
    with pytest.raises(ConfigError) as refused:
        plan(released_config, memory, context, batch)
    assert refused.value.where == where


def test_without_torch() -> None:
    """Planning a machine takes seconds, or a torch that is not installed there."""
    program = f"""
import json, sys
from pathlib import Path
from deepinfer.config.model import parse_model_config
from deepinfer.tools.plan import plan, plan_lines
config = parse_model_config(json.loads(Path({str(RELEASED)!r}).read_text()))
assert list(plan_lines(plan(config, 10**12, 1000, 1)))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=RELEASED.parents[1])
