"""From index queries to the rows of the entry store that are attended to."""

from torch import Tensor

from deepinfer.kernels.triton.index_scores import index_scores, index_scores_of, serves
from deepinfer.kernels.triton.index_small import index_scores_small
from deepinfer.kernels.triton.select import candidate_blocks, select_entries
from deepinfer.kernels.values import CandidateRule, EntryView, Selection


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
    is_invariant: bool,
) -> Selection:
    """`KernelSet.select`: rows int32 [T, topk], candidates int32 [T, kb]. is_invariant: as of
    `index_scores`."""
    size, scored = rule.block_size, (query, weights, keys, view)
    is_small = not serves(query)
    if candidates is not None:
        score_of = index_scores_small if is_small else index_scores_of
        scores = score_of(*scored, candidates, size)
        rows = select_entries(scores, topk, candidates=candidates, block_size=size, stored_at=view)
        return Selection(None, None, rows, None)
    if is_small:
        scores = index_scores_small(*scored)
    else:
        scores = index_scores(*scored, is_invariant=is_invariant)
    rows = select_entries(scores, topk, view.num_visible, stored_at=view)
    made = candidate_blocks(scores, view.num_visible, *rule) if makes_candidates else None
    return Selection(None, None, rows, made)
