"""The attention sublayer of a whole batch (spec 7): the project's `Attention` modules over `dense`.

Replaces where keys come from and how they are attended to, and adds lessons for the indexers: on
some rows the attention to all visible entries is observed, and the index scores of the same rows
are kept with their gradient. Knows nothing of layers' order or of losses.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepinfer.model.attention import Angles, Attention
from deepinfer.model.compressor import entry_from_latent
from deepinfer.model.indexer import Indexer
from training.dense import (
    Softmax,
    attend,
    choose,
    index_scores,
    joint_softmax,
    key_blocks,
    replay_mask,
    visible_entries,
    window_mask,
)


@dataclass(frozen=True)
class Mode:
    """How attention is run.

    select: rows attend to the indexer's selection; else to all visible entries.
    lesson_blocks: int64 [B], of each sequence the number of the block of W rows on which the
    indexers learn, or None.
    softmax: `joint_softmax`, compiled or not.
    """

    select: bool = True
    lesson_blocks: Tensor | None = None
    softmax: Softmax = joint_softmax


@dataclass
class Shared:
    """What one forward's layers have in common, and what source layers hand on, by layer_id.

    num, length: B and S. near: which window keys a row sees, by whether the layer is in the
    decoder half. entries [B, N, C], keys [B, N, Ci]; chosen and candidates, bool [1 or B, S, N].
    scores: of the lesson's rows, float32 [B, W, N], -inf where not visible. mass, float32
    [B, W, N]: how much attention the layers that use a selection pay to each entry.
    candidate_sources: where the candidates of a selection come from, by the layer that selects.
    """

    num: int
    length: int
    near: dict[bool, Tensor]
    entries: dict[int | None, Tensor] = field(default_factory=dict)
    keys: dict[int | None, Tensor] = field(default_factory=dict)
    chosen: dict[int | None, Tensor] = field(default_factory=dict)
    candidates: dict[int | None, Tensor] = field(default_factory=dict)
    scores: dict[int | None, Tensor] = field(default_factory=dict)
    mass: dict[int | None, Tensor] = field(default_factory=dict)
    candidate_sources: dict[int | None, int | None] = field(default_factory=dict)


def start_shared(token_ids: Tensor, window: int, replay: Tensor | None) -> Shared:
    """token_ids int64 [B, S]; replay int64 [B, S]: in the decoder half a row sees window keys of
    its own part alone, as bounded replay does (spec 7.9); None is no limit.
    """
    num, length = token_ids.shape
    near = window_mask(length, window, token_ids.device)
    limited = near if replay is None else near & replay_mask(replay, window)
    return Shared(num, length, {False: near, True: limited})


def attention(attn: Attention, angles: Angles, mode: Mode, shared: Shared, u: Tensor) -> Tensor:
    """One attention sublayer: u [B * S, D] -> [B * S, D]."""
    plan, kernels, sequences = attn.plan, attn.kernels, (shared.num, shared.length)
    near = shared.near[plan.in_decoder]
    q_latent = attn.q_norm(attn.wq_a(u))
    query = attn.wq_b(q_latent).unflatten(-1, (attn.num_heads, attn.head_dim))
    query = kernels.rotate(query, *angles.rows).unflatten(0, sequences)
    window = attn.window_kv(attn.wkv(u), angles.rows).unflatten(0, sequences)
    keys = key_blocks(window, near.shape[2])
    if plan.owns_kv:
        _compress(attn, u, angles, shared)
    if plan.owns_index:
        _index(attn, u.detach(), q_latent.detach(), angles, mode, shared)
    if plan.ratio and mode.lesson_blocks is not None:
        _observe(attn, query, keys, mode.lesson_blocks, shared)
    mixed = attend(
        query,
        attn.attn_sink,
        attn.scale,
        keys,
        near,
        shared.entries.get(plan.kv_source),
        shared.chosen.get(plan.index_source),
        mode.softmax,
    )
    mixed = kernels.rotate(mixed.flatten(0, 1), *angles.rows.inverse())
    return attn.wo_b(attn.wo_a(mixed.flatten(1).unflatten(1, (attn.num_groups, -1))))


def _compress(attn: Attention, u: Tensor, angles: Angles, shared: Shared) -> None:
    compressor, plan = attn.compressor, attn.plan
    values = compressor.wkv(u)
    if plan.ratio > 1:
        pairs = (-1, plan.ratio)
        scores = compressor.wgate(u).unflatten(0, pairs)
        values = attn.kernels.pool_pairs(values.unflatten(0, pairs), scores)
    latent = compressor.norm(values.to(u.dtype))
    assert angles.entries is not None  # only window layers have none
    entries = entry_from_latent(attn.setup, latent, angles.entries)
    # Detached: the indexer learns from what attention does and must not change what it does.
    keys = attn.indexer.keys(latent.detach(), angles.entries)
    shared.entries[plan.layer_id] = entries.unflatten(0, (shared.num, -1))
    shared.keys[plan.layer_id] = keys.unflatten(0, (shared.num, -1))


def _index(
    attn: Attention, u: Tensor, q_latent: Tensor, angles: Angles, mode: Mode, shared: Shared
) -> None:
    """Fill in which entries the rows may attend to, and the scores of the lesson's rows."""
    plan, c, keys = attn.plan, attn.setup.config, shared.keys[attn.plan.kv_source]
    visible = visible_entries(
        torch.arange(shared.length, device=u.device), keys.shape[1], plan.ratio
    )
    shared.chosen[plan.layer_id] = visible[None]
    shared.candidate_sources[plan.layer_id] = plan.candidate_source
    if mode.lesson_blocks is None and not mode.select:
        return
    query, weights = index_queries(attn.indexer, u, q_latent, angles)
    query, weights = (x.unflatten(0, (shared.num, shared.length)) for x in (query, weights))
    if mode.lesson_blocks is not None:
        asked, weighed = (
            of_blocks(x, mode.lesson_blocks, c.sliding_window) for x in (query, weights)
        )
        seen = visible[lesson_rows(mode.lesson_blocks, c.sliding_window)]
        scores = index_scores(asked, weighed, keys)
        shared.scores[plan.layer_id] = scores.masked_fill(~seen, -torch.inf)
    if not mode.select:
        return
    with torch.no_grad():
        scores = index_scores(query, weights, keys).masked_fill(~visible, -torch.inf)
        allowed = shared.candidates.get(plan.candidate_source, visible.expand(scores.shape))
        shared.chosen[plan.layer_id] = choose(scores, allowed, c.index_topk)
        if plan.makes_candidates:
            shared.candidates[plan.layer_id] = attn.kernels.candidate_entries(
                scores.flatten(0, 1),
                visible.sum(-1).repeat(shared.num),
                c.candidate_block_size,
                c.candidate_topk_blocks,
            ).view(scores.shape)


def index_queries(
    indexer: Indexer, u: Tensor, q_latent: Tensor, angles: Angles
) -> tuple[Tensor, Tensor]:
    """Queries [T, Hi, Ci] and head weights [T, Hi] of an indexer."""
    c, kernels = indexer.config, indexer.kernels
    query = indexer.wq_b(q_latent).unflatten(-1, (c.index_n_heads, c.index_head_dim))
    query = kernels.round_trip_index(kernels.rotate(query, *angles.rows))
    return query, indexer.weights_proj(u) * indexer.head_scale


def lesson_rows(blocks: Tensor, window: int) -> Tensor:
    """The positions of one block of each sequence: int64 [B, W]."""
    return blocks[:, None] * window + torch.arange(window, device=blocks.device)


def of_blocks(rows: Tensor, blocks: Tensor, window: int) -> Tensor:
    """[B, S, ...] -> [B, W, ...]: one block of each sequence."""
    sequence = torch.arange(len(blocks), device=blocks.device)
    return rows.unflatten(1, (-1, window))[sequence, blocks]


@torch.no_grad()
def _observe(attn: Attention, query: Tensor, keys: Tensor, blocks: Tensor, shared: Shared) -> None:
    """Add this layer's attention to every visible entry, on the lesson's rows, to the mass that
    the indexers are taught: that of its selection, and that of the candidates it is made from,
    whose indexer must foresee what later layers will want.
    """
    plan, window = attn.plan, keys.shape[2] // 2
    rows, entries = lesson_rows(blocks, window), shared.entries[plan.kv_source]
    asked = of_blocks(query, blocks, window)
    sequence = torch.arange(len(blocks), device=blocks.device)
    near = shared.near[plan.in_decoder].expand(len(blocks), -1, -1, -1)[sequence, blocks]
    visible = visible_entries(rows.flatten(), entries.shape[1], plan.ratio).unflatten(0, rows.shape)
    pairs = []
    for found, mask in ((keys[sequence, blocks], near), (entries, visible)):
        logits = asked.flatten(1, 2) @ found.transpose(1, 2)
        pairs += [logits.unflatten(1, asked.shape[1:3]), mask[:, :, None]]
    _, share = joint_softmax(attn.attn_sink, attn.scale, *pairs)
    mass = share.to(torch.float32).sum(2)
    candidate_source = shared.candidate_sources[plan.index_source]
    for source in {plan.index_source, candidate_source} - {None}:
        shared.mass[source] = shared.mass.get(source, 0.0) + mass
