"""Cases of attention, of index scores and of selections."""

from collections.abc import Iterator
from dataclasses import astuple

import torch

from deepinfer.bench.gpu.cases import (
    CHANNELS,
    CONFIG,
    HEADS,
    INDEX_CHANNELS,
    INDEX_HEADS,
    TOPK,
    WINDOW,
    Case,
    Randoms,
    how_many,
)
from deepinfer.bench.gpu.timing import Call
from deepinfer.cache.layout import vector_bytes
from deepinfer.kernels.triton.attend import attend
from deepinfer.kernels.triton.index_scores import index_scores, index_scores_of
from deepinfer.kernels.triton.select import candidate_blocks, select_entries
from deepinfer.kernels.values import EntryView, Rotary

_WINDOW_BYTES, _ENTRY_BYTES, _KEY_BYTES = astuple(vector_bytes(CONFIG, "packed"))
_BLOCK, _CANDIDATE_BLOCKS = CONFIG.candidate_block_size, CONFIG.candidate_topk_blocks
_CONTEXT = 131_072


def attention() -> Iterator[Case]:
    """128 window rows and 512 entries for each row."""
    for rows in (1, 4, 16, 32, 128, 1024):
        moved = rows * (WINDOW * _WINDOW_BYTES + TOPK * _ENTRY_BYTES + 2 * HEADS * CHANNELS * 2)
        flops = 4 * rows * HEADS * (WINDOW + TOPK) * CHANNELS
        calls = [attention_call(Randoms(n), rows) for n in range(how_many(moved, 6))]
        yield Case(f"attention, {rows} rows", calls, moved, flops)


def attention_call(randoms: Randoms, rows: int) -> Call:
    """Entries of 16 sequences of 65,536 each; any codes, scales near 1."""
    query = randoms.normal(rows, HEADS, CHANNELS)
    num_turned = CONFIG.qk_rope_head_dim // 2
    rotary = Rotary(*(randoms.uniform(rows, num_turned) for _ in range(2)))
    window = randoms.packed(rows + WINDOW, _WINDOW_BYTES)
    entries = randoms.packed(1 << 20, _ENTRY_BYTES)
    around = torch.arange(rows, device="cuda")[:, None] + torch.arange(WINDOW, device="cuda")
    window_index = around.to(torch.int32)
    listed = randoms.integers(0, 1 << 20, rows, TOPK, dtype=torch.int32).sort(1).values.contiguous()
    sink = randoms.normal(HEADS, dtype=torch.float32)
    stores = (window, window_index, entries, listed)
    return lambda: attend(query, rotary, sink, CHANNELS**-0.5, *stores)


def scores() -> Iterator[Case]:
    """All entries of each sequence for each of its rows."""
    for sequences, rows, entries in (
        *((1, rows, _CONTEXT) for rows in (1, 4)),
        *((32, rows, _CONTEXT // 2) for rows in (1, 2, 4)),
        (128, 4, _CONTEXT // 2),
        (1, 1024, _CONTEXT // 2),
    ):
        moved = sequences * entries * (_KEY_BYTES + 2 * rows)
        flops = 2 * sequences * rows * entries * INDEX_HEADS * INDEX_CHANNELS
        name = f"index scores, {sequences} x {rows} rows, {entries:,} keys"
        calls = [
            scores_call(Randoms(n), sequences, rows, entries) for n in range(how_many(moved, 4))
        ]
        yield Case(name, calls, moved, flops)


def _keys(
    randoms: Randoms, sequences: int, rows: int, entries: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, EntryView]:
    """Queries, their weights, the store of keys, and its blocks in any order."""
    per_block = 64 if entries < _CONTEXT else 128
    num_blocks, total = entries // per_block, sequences * rows
    query = randoms.integers(-3, 4, total, INDEX_HEADS, INDEX_CHANNELS).to(torch.bfloat16) / 2
    keys = randoms.packed(sequences * entries, _KEY_BYTES)
    order = torch.arange(total, device="cuda").view(sequences, rows)
    view = EntryView(
        randoms.order(sequences * num_blocks).view(sequences, num_blocks),
        per_block,
        torch.arange(sequences, device="cuda").repeat_interleave(rows),
        torch.full((total,), entries, device="cuda"),
        (order,),
    )
    return query, randoms.normal(total, INDEX_HEADS), keys, view


def scores_call(randoms: Randoms, sequences: int, rows: int, entries: int) -> Call:
    """Every row sees every entry."""
    inputs = _keys(randoms, sequences, rows, entries)
    return lambda: index_scores(*inputs)


def candidates() -> Iterator[Case]:
    """Scores of 2,048 blocks of 8 candidates of each row, and how blocks are chosen."""
    for sequences in (1, 32, 128):
        rows = 4 * sequences
        moved = rows * _CANDIDATE_BLOCKS * _BLOCK * (_KEY_BYTES + 2)
        flops = 2 * rows * _CANDIDATE_BLOCKS * _BLOCK * INDEX_HEADS * INDEX_CHANNELS
        randoms = Randoms()
        inputs = _keys(randoms, sequences, 4, _CONTEXT if sequences < 128 else _CONTEXT // 4)
        total = inputs[-1].num_entries // _BLOCK
        chosen = [randoms.order(total)[:_CANDIDATE_BLOCKS].sort().values for _ in range(rows)]
        blocks = torch.stack(chosen).to(torch.int32)
        call = _candidates_call(inputs, blocks)
        yield Case(f"scores of 16,384 candidates, {rows} rows", [call], moved, flops)
    for rows in (4, 128, 1024):
        given, seen = Randoms().normal(rows, _CONTEXT), _seen(rows, _CONTEXT)
        yield Case(
            f"candidate blocks, {rows} rows",
            [_blocks_call(given, seen)],
            rows * _CONTEXT * 2,
        )


def _candidates_call(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, EntryView], blocks: torch.Tensor
) -> Call:
    return lambda: index_scores_of(*inputs, blocks, _BLOCK)


def _blocks_call(given: torch.Tensor, seen: torch.Tensor) -> Call:
    return lambda: candidate_blocks(given, seen, _BLOCK, _CANDIDATE_BLOCKS)


def selections() -> Iterator[Case]:
    """512 of so many scores, beside torch.topk of the same bfloat16 numbers."""
    for rows in (4, 128, 1024):
        for width in (16_384, 65_536, 131_072):
            moved = rows * width * 2
            sets = [Randoms(n).normal(rows, width) for n in range(how_many(moved, 4))]
            seen = _seen(rows, width)
            name = f"512 of {width:,}, {rows} rows"
            calls = [_select_call(given, seen) for given in sets]
            yield Case(f"select {name}", calls, moved)
            yield Case(f"torch.topk, {name}", [_topk_call(given) for given in sets], moved)


def _seen(rows: int, width: int) -> torch.Tensor:
    return torch.full((rows,), width, device="cuda")


def _select_call(given: torch.Tensor, seen: torch.Tensor) -> Call:
    return lambda: select_entries(given, TOPK, seen)


def _topk_call(given: torch.Tensor) -> Call:
    return lambda: torch.topk(given, TOPK, sorted=False)
