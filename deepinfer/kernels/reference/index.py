"""The lightning indexer's scores and selections (spec 7.4, 7.5). Ties go to the lowest index,
everywhere.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.kernels.reference.linear import row_product
from deepinfer.kernels.values import EntryView

# Largest tensors, in elements: keys of some sequences [b, N, Ci], and [rows, index heads, entries].
# They are passed over several times: beyond a core's cache that takes three times as long.
_CHUNK_ELEMENTS = 1 << 19


def index_scores(query: Tensor, weights: Tensor, key_store: Tensor, table: Tensor) -> Tensor:
    """Score of every entry for every row, rounded once to the query's dtype and returned in
    float32.

    query [B, S, Hi, Ci], weights [B, S, Hi] of B sequences with S rows each; key_store [*, Ci];
    table int64 [B, N], rows of the store -> [B, S, N]: sum over heads of weight * relu(query .
    key). Rounding makes ties common in bfloat16; ranking rounded scores is what the release does.
    """
    sequences = max(1, _CHUNK_ELEMENTS // max(1, table.shape[1] * key_store.shape[1]))
    parts = [
        _scores(q, w, F.embedding(rows, key_store).to(torch.float32).transpose(1, 2))
        for q, w, rows in zip(
            query.split(sequences), weights.split(sequences), table.split(sequences), strict=True
        )
    ]
    return torch.cat(parts).to(query.dtype).to(torch.float32)


def _scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """query [b, S, Hi, Ci], weights [b, S, Hi], keys float32 [b, Ci, N] -> float32 [b, S, N]."""
    num_heads = query.shape[2]
    rows = max(1, _CHUNK_ELEMENTS // max(1, query.shape[0] * num_heads * keys.shape[2]))
    parts = []
    for q, w in zip(query.split(rows, 1), weights.split(rows, 1), strict=True):
        match = torch.relu(row_product(q.flatten(1, 2).to(torch.float32), keys))
        match = match.unflatten(1, (-1, num_heads))
        # Not a product of matrices: one row of weights would be summed in another order.
        parts.append((match * w.to(torch.float32)[..., None]).sum(2))
    return torch.cat(parts, 1)


def scores_of_rows(
    score: Callable[..., Tensor], query: Tensor, weights: Tensor, keys: Tensor, view: EntryView
) -> Tensor:
    """`score`, which is `index_scores`, for rows that belong to sequences: float32 [T, N].

    query [T, Hi, Ci], weights [T, Hi], keys [*, Ci]; view: of the T rows.
    """
    table = entry_table(view.blocks, view.per_block)
    # The last row is for padding, -1: to leave that out, the host would have to wait.
    scores = query.new_empty(query.shape[0] + 1, table.shape[1], dtype=torch.float32)
    for rows in view.groups:
        safe = rows.clamp_min(0)
        sequences = view.sequence_ids[safe[:, 0]]
        scores[rows] = score(query[safe], weights[safe], keys, table[sequences])
    return scores[:-1]


def entry_table(blocks: Tensor, per_block: int) -> Tensor:
    """Blocks int64 [B, n] of `per_block` entries -> store rows int64 [B, n * per_block]."""
    of_block = torch.arange(per_block, device=blocks.device)
    return (blocks[..., None] * per_block + of_block).flatten(1)


def store_rows(selected: Tensor, view: EntryView) -> Tensor:
    """Entry numbers [T, K] within each row's sequence -> rows of the store; -1 stays."""
    if not view.blocks.shape[1]:
        return selected
    entry = selected.clamp_min(0)
    block = view.blocks[view.sequence_ids].gather(1, entry // view.per_block)
    rows = block * view.per_block + entry % view.per_block
    return rows.masked_fill(selected < 0, -1)


def select_entries(scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
    """The best entries of each row: int64 [T, topk], ascending, then -1.

    scores float32 [T, N]; allowed bool [T, N] (visible, and a candidate where candidates restrict).
    The
    width is always topk: where an entry stands in the list must not depend on the batch.
    """
    num_entries = scores.shape[1]
    chosen = allowed
    if num_entries > topk:
        # NaN compares with nothing. As the best of all it is chosen, and its row seen to be broken.
        ranked = scores.nan_to_num(torch.inf, torch.inf, -torch.inf).masked_fill(
            ~allowed, -torch.inf
        )
        least = ranked.topk(topk, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        above, equal = ranked > least, (ranked == least) & allowed
        # Of the entries that tie for the last places, the first ones.
        room = topk - above.sum(-1, keepdim=True)
        chosen = above | (equal & (equal.cumsum(-1) <= room))
    place = (chosen.cumsum(-1) - 1).masked_fill(~chosen, topk)
    entry = torch.arange(num_entries, device=scores.device).expand_as(place)
    selected = torch.full((scores.shape[0], topk + 1), -1, device=scores.device)
    return selected.scatter_(1, place, entry)[:, :topk]


def candidate_entries(
    scores: Tensor, num_visible: Tensor, block_size: int, topk_blocks: int
) -> Tensor:
    """Entries that later selections may choose from: bool [T, N], visible entries of the kept
    blocks.

    A block is `block_size` consecutive entries and scores as its best visible entry; the block of
    the newest visible entry is always kept. num_visible int64 [T].
    """
    num_rows, num_entries = scores.shape
    entry = torch.arange(num_entries, device=scores.device)
    visible = entry < num_visible[:, None]
    num_blocks = -(-num_entries // block_size)
    if num_blocks <= topk_blocks:
        return visible
    padded = torch.full((num_rows, num_blocks * block_size), -torch.inf, device=scores.device)
    padded[:, :num_entries] = scores.masked_fill(~visible, -torch.inf)
    best = padded.view(num_rows, num_blocks, block_size).amax(-1)
    newest = (num_visible - 1).clamp_min(0) // block_size
    best.scatter_(1, newest[:, None], torch.inf)
    order = best.sort(dim=-1, descending=True, stable=True).indices[:, :topk_blocks]
    kept = torch.zeros(num_rows, num_blocks, dtype=torch.bool, device=scores.device)
    kept.scatter_(1, order, True)
    return kept.repeat_interleave(block_size, 1)[:, :num_entries] & visible
