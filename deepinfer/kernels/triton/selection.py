"""From index queries to the rows of the entry store that are attended to.

Heads of another size than the released 128 channels, or fewer than 16 of them, as toys have, are
scored in torch, from the same packed rows: slow, never wrong.
"""

import torch
from torch import Tensor

from deepinfer.kernels.reference import index, quant
from deepinfer.kernels.triton.index_scores import index_scores, index_scores_of
from deepinfer.kernels.triton.select import candidate_blocks, select_entries
from deepinfer.kernels.values import CandidateRule, EntryView, Selection

_CHANNELS, _HEADS = 128, 16  # what the score kernels are made for; more heads, too


def select(
    query: Tensor,
    weights: Tensor,
    keys: Tensor,
    view: EntryView,
    topk: int,
    rule: CandidateRule,
    candidates: Tensor | None,
    *,
    makes_candidates: bool,
) -> Selection:
    """`KernelSet.select`: rows int32 [T, topk], candidates int32 [T, kb]."""
    size, is_plain = rule.block_size, query.shape[1] < _HEADS or query.shape[2] != _CHANNELS
    if candidates is not None:
        if is_plain:
            scores = _plain_scores_of(_plain_scores(query, weights, keys, view), candidates, size)
        else:
            scores = index_scores_of(query, weights, keys, view, candidates, size)
        rows = select_entries(scores, topk, candidates=candidates, block_size=size, stored_at=view)
        return Selection(None, None, rows, None)
    if is_plain:
        scores = _plain_scores(query, weights, keys, view)
    else:
        scores = index_scores(query, weights, keys, view)
    rows = select_entries(scores, topk, view.num_visible, stored_at=view)
    made = candidate_blocks(scores, view.num_visible, *rule) if makes_candidates else None
    return Selection(None, None, rows, made)


def _plain_scores(query: Tensor, weights: Tensor, keys: Tensor, view: EntryView) -> Tensor:
    """bf16 [T, N], -inf where a row does not see the entry; keys uint8 [*, Ci / 2 + Ci / 32]."""
    channels = query.shape[-1]

    def score(query: Tensor, weights: Tensor, keys: Tensor, table: Tensor) -> Tensor:
        rows = keys[table]
        codes, scales = rows[..., : channels // 2], rows[..., channels // 2 :]
        # decode_fp4 takes bytes as signed, as the checkpoint has them.
        values = quant.decode_fp4(codes.contiguous().view(torch.int8), quant.decode_ue8m0(scales))
        flat = values.to(query.dtype).flatten(0, 1)
        places = torch.arange(len(flat), device=flat.device).view(table.shape)
        return index.index_scores(query, weights, flat, places)

    scores = index.scores_of_rows(score, query, weights, keys, view)
    entry = torch.arange(scores.shape[1], device=scores.device)
    hidden = entry >= view.num_visible[:, None]
    return scores.masked_fill(hidden, -torch.inf).to(torch.bfloat16)


def _plain_scores_of(scores: Tensor, candidates: Tensor, block_size: int) -> Tensor:
    """Of all scores [T, N] those of each row's candidates: [T, kb * block_size], -inf for none."""
    num_rows, num_entries = scores.shape
    of_block = torch.arange(block_size, device=scores.device)
    entry = (candidates[..., None].to(torch.int64) * block_size + of_block).flatten(1)
    absent = (candidates < 0).repeat_interleave(block_size, 1) | (entry >= num_entries)
    if not num_entries:
        return scores.new_full((num_rows, entry.shape[1]), -torch.inf)
    return scores.gather(1, entry.clamp(0, num_entries - 1)).masked_fill(absent, -torch.inf)
