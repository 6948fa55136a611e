"""`deepinfer plan`: how many tokens and sequences fit, as a table, from config.json alone.

Reads the command's arguments and prints; the arithmetic is in `capacity.py`. Never imports torch.
"""

import os
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

from deepinfer.cache.account import Account, account_lines, workspace_bytes
from deepinfer.cache.layout import BLOCK_TOKENS, blocks_for, total_bytes
from deepinfer.config.model import read_model_config
from deepinfer.config.words import Storage
from deepinfer.errors import ConfigError
from deepinfer.tools.capacity import Plan, plan
from deepinfer.tools.inspect import GROUPS

_CONFIG = "config.json"
_DTYPES: dict[str, Storage] = {"bfloat16": "bfloat16", "float32": "float32"}
_UNITS = {f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)}
_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}


def main(
    path: Path,
    memory: str | None,
    context: int | None,
    batch: int,
    *,
    dtype: str = "bfloat16",
) -> int:
    """Print the table; 1 if the asked batch does not fit. Raises ConfigError.

    path: a model's folder, or its config.json. memory: bytes, or a number with a unit (80GB,
    24GiB); None is this machine's. context: None is the model's longest.
    """
    if dtype not in _DTYPES:
        raise ConfigError(
            f"found {dtype!r}, expected one of {', '.join(_DTYPES)}",
            where="--dtype",
            hint="correct the option",
        )
    folder = path.parent if path.name == _CONFIG and not path.is_dir() else path
    config = read_model_config(folder)
    found = plan(
        config,
        machine_bytes() if memory is None else parse_bytes(memory),
        config.max_position_embeddings if context is None else context,
        batch,
        dtype=_DTYPES[dtype],
    )
    print("\n".join(plan_lines(found)))
    return 0 if found.fits else 1


def parse_bytes(text: str) -> int:
    """Bytes from "80000000000", "80GB" or "24.5 GiB". Raises ConfigError."""
    match = re.fullmatch(
        r"(\d+|\d+\.\d+(?= ?[a-z])) ?([a-z]*)", text.strip(), re.IGNORECASE | re.ASCII
    )
    units = {"": 1, **{unit.lower(): size for unit, size in _UNITS.items()}}
    if match is None or match[2].lower() not in units:
        raise ConfigError(
            f"found {text!r}, expected bytes, or a number with a unit",
            where="--memory",
            hint="for example 24GiB or 80GB",
        )
    return int(Fraction(match[1]) * units[match[2].lower()])


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def plan_lines(p: Plan) -> Iterator[str]:
    """The answer as a table."""
    c = p.config
    sizes = f"hidden {c.hidden_size}, {c.n_routed_experts} experts"
    yield f"model: {c.num_hidden_layers} layers, {sizes}, {c.num_nextn_predict_layers} draft blocks"
    yield f"asked: {p.batch:,} sequences of {p.context:,} tokens in {p.memory_bytes:,} bytes"
    yield ""
    yield from _weight_lines(p)
    yield ""
    yield from _cache_lines(p)
    yield ""
    yield f"bytes of memory, for what was asked, as {p.plain.name}"
    yield from account_lines(_account(p))
    yield ""
    yield from _fit_lines(p)


def _account(p: Plan) -> Account:
    """Of the asked batch in this engine, in steps of one row for each sequence and its drafts."""
    c, block_bytes = p.config, total_bytes(p.plain.block)
    drafts = p.plain.weights[[group for group, _ in GROUPS].index("draft module")]
    num_rows = p.batch * (1 + c.dspark_block_size if c.num_nextn_predict_layers else 1)
    value_bytes = 4 if p.plain.name.endswith("float32") else 2
    return Account(
        memory=p.memory_bytes,
        weights=p.plain.weight_bytes - drafts,
        drafts=drafts,
        num_blocks=p.batch * blocks_for(p.context),
        block_bytes=block_bytes,
        num_slots=p.batch,
        slot_bytes=total_bytes(p.plain.slot),
        workspace=workspace_bytes(c, num_rows, num_rows, value_bytes, block_bytes),
    )


def _row(title: str, *cells: object) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
    return f"{title:38}" + "".join(f"{cell:>20}" for cell in shown)


def _weight_lines(p: Plan) -> Iterator[str]:
    yield _row("bytes of weights in memory", p.released.name, p.plain.name, "on disk")
    for place, (group, _) in enumerate(GROUPS):
        yield _row(group, p.released.weights[place], p.plain.weights[place], p.disk[place])
    yield _row("all", p.released.weight_bytes, p.plain.weight_bytes, sum(p.disk))


def _cache_lines(p: Plan) -> Iterator[str]:
    columns = (p.released, p.plain)
    yield _row("bytes of caches", *(column.name for column in columns))
    for title, parts in (
        (f"a block, of {BLOCK_TOKENS} tokens", [column.block for column in columns]),
        ("a slot, of a sequence", [column.slot for column in columns]),
    ):
        for same in zip(*parts, strict=True):
            layers = f"{same[0].num_layers} x " if same[0].num_layers > 1 else ""
            sizes = (part.num_layers * part.num_bytes for part in same)
            yield _row(f"  {layers}{same[0].name}", *sizes)
        yield _row(title, *(total_bytes(part) for part in parts))
    yield _row("a token", *(f"{column.token_bytes:,.2f}" for column in columns))


def _fit_lines(p: Plan) -> Iterator[str]:
    columns = (p.released, p.plain)
    yield _row("what fits", *(column.name for column in columns))
    yield _row("bytes left for caches", *(column.left for column in columns))
    yield _row(f"tokens beside {p.batch:,} slots", *(column.num_tokens for column in columns))
    yield _row(f"context of {p.batch:,} sequences", *(column.max_context for column in columns))
    yield _row(f"sequences of {p.context:,} tokens", *(column.max_batch for column in columns))
    for column in columns:
        if column.left < 0:
            yield f"{column.name}: the weights alone need {-column.left:,} bytes more"
    verdict = "fits" if p.fits else "does NOT fit"
    yield f"verdict: this engine keeps the model as {p.plain.name}; what was asked {verdict}"
