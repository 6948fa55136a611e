"""The draft module on a frozen backbone (spec 11): its forward over many anchors, and its losses.

Reads the modules of the project's `Draft`. At each anchor it proposes a block of tokens from the
features before it; it is taught the backbone's own distributions, and its confidence whether its
most probable token is the backbone's. Knows nothing of optimizers or files.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.kernels.values import rotary
from deepinfer.model.attention import Angles, Attention
from deepinfer.model.draft import Draft
from deepinfer.model.layer import start_flow
from deepinfer.model.network import Network
from training.dense import attend, joint_softmax
from training.model import Seen

# Later drafts count less: they matter only if all before them are right.
_DECAY = 0.9
# A draft after a token that the backbone would not have written teaches little.
_OFF_PATH = 0.1
# Keeps the confidence head's weights small where the evidence does not decide.
_RIDGE = 1e-5


class Lesson(NamedTuple):
    """A anchors a sequence, n drafts each.

    loss, confidence_loss: scalars. confidence: float32 [B, A, n], raw. evidence: [B, A, n, F], what
    the confidence head reads. is_right: bool [B, A, n], the most probable draft is the backbone's
    most probable token. on_path: bool [B, A, n], the text before the draft is what the backbone
    would have written. counts: the same, and all drafts before are right.
    """

    loss: Tensor
    confidence_loss: Tensor
    confidence: Tensor
    evidence: Tensor
    is_right: Tensor
    on_path: Tensor
    counts: Tensor


def pick_anchors(
    is_target: Tensor, num_anchors: int, block: int, generator: torch.Generator | None = None
) -> Tensor:
    """Positions of certain tokens after which a whole block of targets follows if possible: random,
    int64 [B, A]. The first and the last positions are no anchors.
    """
    weight = is_target.to(torch.float32).unfold(1, block + 1, 1).mean(-1) + 0.01
    weight[:, 0] = 0.0
    return torch.multinomial(weight, num_anchors, generator=generator).sort(-1).values


def run_drafts(network: Network, features: Tensor, token_ids: Tensor, anchors: Tensor) -> Tensor:
    """The blocks' output before the last norm: [B, A, n, D].

    features [B * S, taps * D]; token_ids int64 [B, S]; anchors int64 [B, A].
    """
    draft, c = network.draft, network.setup.config
    block = c.dspark_block_size
    ids = torch.full((*anchors.shape, block), c.dspark_noise_token_id, device=anchors.device)
    ids[..., 0] = token_ids.gather(1, anchors)
    positions = (anchors[..., None] + torch.arange(block, device=anchors.device)).flatten()
    angles = Angles(rotary(positions, draft.frequencies))
    main = _main_keys(draft, features, token_ids.shape)
    flow = start_flow(network.embed(ids.flatten()), c.hc_mult)
    for layer, keys in zip(draft.blocks, main, strict=True):
        attention = partial(_attention, layer.attn, angles, keys, anchors)
        flow = layer.around(flow, attention)
    flow = flow.settled(draft.kernels)
    hidden = draft.kernels.hyper_collapse(flow.streams, flow.pre)
    return hidden.view(*anchors.shape, block, -1)


def _main_keys(draft: Draft, features: Tensor, shape: torch.Size) -> list[Tensor]:
    """Window keys that main tokens leave in each block, [B, S, C]."""
    context = draft.main_norm(draft.main_proj(features))
    positions = torch.arange(shape[1], device=features.device)
    angles = rotary(positions.repeat(shape[0]), draft.frequencies)
    return [
        block.attn.window_kv(block.attn.wkv(context), angles).unflatten(0, shape)
        for block in draft.blocks
    ]


def _attention(attn: Attention, angles: Angles, main: Tensor, anchors: Tensor, u: Tensor) -> Tensor:
    """Rows u [B * A * n, D] attend to the window of main keys before their anchor and to all rows
    of their own block.
    """
    kernels, window = attn.kernels, attn.setup.config.sliding_window
    num_blocks = anchors.numel()
    query = attn.wq_b(attn.q_norm(attn.wq_a(u))).unflatten(-1, (attn.num_heads, attn.head_dim))
    query = kernels.rotate(query, *angles.rows).unflatten(0, (num_blocks, -1))
    own = attn.window_kv(attn.wkv(u), angles.rows).unflatten(0, (num_blocks, -1))
    before = anchors[..., None] + torch.arange(-window, 0, device=anchors.device)
    sequence = torch.arange(len(anchors), device=anchors.device)[:, None, None]
    found = main[sequence, before.clamp_min(0)].flatten(0, 1)
    seen = F.pad((before >= 0).flatten(0, 1), (0, own.shape[1]), value=True)
    mixed = attend(
        query,
        attn.attn_sink,
        attn.scale,
        torch.cat((found, own), 1)[:, None],
        seen[:, None, None].expand(-1, -1, own.shape[1], -1),
        None,
        None,
        joint_softmax,
    )
    mixed = kernels.rotate(mixed.flatten(0, 1), *angles.rows.inverse())
    return attn.wo_b(attn.wo_a(mixed.flatten(1).unflatten(1, (attn.num_groups, -1))))


def teach(network: Network, seen: Seen, token_ids: Tensor, anchors: Tensor) -> Lesson:
    """Losses of the drafts at `anchors` against the backbone's forward `seen`, which has no
    gradient.
    """
    draft, block = network.draft, network.setup.config.dspark_block_size
    hidden = run_drafts(network, seen.features, token_ids, anchors)
    places = anchors[..., None] + torch.arange(block, device=anchors.device)
    sequence = torch.arange(len(anchors), device=anchors.device)[:, None, None]
    final = seen.final.unflatten(0, token_ids.shape)[sequence, places]
    with torch.no_grad():
        wanted = network.head(final).log_softmax(-1)
    # Slot i follows the token at its own place and predicts the one after it.
    embedded = draft.markov_head.embed(token_ids[sequence, places])
    logits = network.head(draft.norm(hidden)) + draft.markov_head.head(embedded)
    is_right, on_path, counts = _judge(logits, wanted, token_ids[sequence, places + 1])
    divergence = F.kl_div(logits.log_softmax(-1), wanted, log_target=True, reduction="none").sum(-1)
    weight = on_path.to(torch.float32).clamp_min(_OFF_PATH)
    weight = weight * _DECAY ** torch.arange(block, device=weight.device)
    # Detached: the confidence is to judge the drafts as they are, not to change them.
    confidence = draft.confidence_head(hidden.detach(), embedded.detach())
    errors = F.binary_cross_entropy_with_logits(
        confidence, is_right.to(torch.float32), reduction="none"
    )
    return Lesson(
        loss=(divergence * weight).sum() / weight.sum(),
        confidence_loss=(errors * counts).sum() / counts.sum().clamp_min(1),
        confidence=confidence.detach(),
        evidence=torch.cat((hidden, embedded), -1).detach(),
        is_right=is_right,
        on_path=on_path,
        counts=counts,
    )


def _judge(logits: Tensor, wanted: Tensor, following: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """is_right, on_path and counts of a `Lesson`."""
    greedy = wanted.argmax(-1)
    is_right = logits.detach().argmax(-1) == greedy
    written = (greedy == following).cumprod(-1)
    on_path = F.pad(written[..., :-1], (1, 0), value=1).bool()
    right_before = F.pad(is_right[..., :-1].cumprod(-1), (1, 0), value=1).bool()
    return is_right, on_path, on_path & right_before


def leading(lesson: Lesson) -> Tensor:
    """Mean number of leading drafts that are right, over blocks whose text is what the backbone
    would have written all along.
    """
    whole = lesson.on_path.all(-1)
    number = lesson.is_right.cumprod(-1).sum(-1)
    return (number * whole).sum() / whole.sum().clamp_min(1)


def fit_confidence(evidence: Tensor, is_right: Tensor, start: Tensor) -> Tensor:
    """The confidence head's weights [F] under which is_right bool [N] is likeliest, given evidence
    [N, F]: a logistic regression, from `start`.

    Training cannot find them: while the drafts get better it judges drafts that are no more.
    """
    rows, right = evidence.to(torch.float32), is_right.to(torch.float32)
    weights = start.to(torch.float32).clone().requires_grad_()
    search = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        misses = F.binary_cross_entropy_with_logits(rows @ weights, right)
        total = misses + _RIDGE * weights.square().sum()
        total.backward()
        return total

    search.step(loss)
    return weights.detach()


def calibration_error(confidence: Tensor, is_right: Tensor, num_bins: int = 10) -> float:
    """Mean distance between estimate and frequency over equal bins of the estimate, weighted."""
    estimate, right = torch.sigmoid(confidence), is_right.to(torch.float32)
    bins = (estimate * num_bins).long().clamp_max(num_bins - 1)
    error = 0.0
    for number in range(num_bins):
        inside = bins == number
        if inside.any():
            gap = (estimate[inside].mean() - right[inside].mean()).abs()
            error += float(gap) * float(inside.float().mean())
    return error
