"""Attention, selection and index scores over whole sequences as dense, masked products.

Functions of tensors alone. Every sequence has the same length S, a multiple of the window W: a
block of W queries sees the window keys of its own and of the preceding block, and entries.

Shape letters: B sequences, S positions, G = S / W blocks, H heads, C head_dim, N entries.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Softmax = Callable[..., tuple[Tensor, ...]]


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Which of the 2W window keys of its block each row sees: bool [1, G, W, 2W]."""
    row = torch.arange(window, device=device)[:, None]
    key = torch.arange(2 * window, device=device)
    near = (key > row) & (key <= row + window)
    starts = torch.arange(length // window, device=device)[:, None, None] == 0
    return (near & ~(starts & (key < window)))[None]


def replay_mask(replay: Tensor, window: int) -> Tensor:
    """Rows see keys of their own part alone: parts int64 [B, S] -> bool [B, G, W, 2W]."""
    of_keys = key_blocks(replay[..., None], window)[..., 0]
    return replay.unflatten(1, (-1, window))[..., None] == of_keys[:, :, None]


def key_blocks(window_kv: Tensor, window: int) -> Tensor:
    """[B, S, C] -> [B, G, 2W, C]: for each block of queries the preceding block and its own."""
    blocks = window_kv.unflatten(1, (-1, window))
    before = F.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :-1]
    return torch.cat((before, blocks), 2)


def visible_entries(positions: Tensor, num_entries: int, ratio: int) -> Tensor:
    """Entries that lie in each position's past: bool [S, N]."""
    entry = torch.arange(num_entries, device=positions.device)
    return entry < ((positions + 1) // ratio)[:, None]


def attend(
    query: Tensor,
    sink: Tensor,
    scale: float,
    keys: Tensor,
    near: Tensor,
    entries: Tensor | None,
    chosen: Tensor | None,
    softmax: Softmax,
) -> Tensor:
    """Window and entries under one softmax: [B, S, H, C].

    query [B, S, H, C]; keys [B, G, 2W, C] and near bool [1 or B, G, W, 2W]; entries [B, N, C] and
    chosen bool [1 or B, S, N]. Keys are the values too.
    """
    num, length, heads, _ = query.shape
    num_blocks, width = keys.shape[1:3]
    blocks = query.reshape(num, num_blocks, -1, query.shape[-1])
    logits = (blocks @ keys.transpose(2, 3)).view(num, length, heads, width)
    pairs = [logits, near.reshape(-1, length, 1, width)]
    if entries is not None and chosen is not None:
        far = query.flatten(1, 2) @ entries.transpose(1, 2)
        pairs += [far.view(num, length, heads, -1), chosen.unsqueeze(-2)]
    shares = softmax(sink, scale, *pairs)
    mixed = (shares[0].reshape(num, num_blocks, -1, width) @ keys).view(query.shape)
    if entries is None or chosen is None:
        return mixed
    return mixed + (shares[1].flatten(1, 2) @ entries).view(query.shape)


def joint_softmax(sink: Tensor, scale: float, *pairs: Tensor) -> tuple[Tensor, ...]:
    """One softmax over several sets of keys and the sink, which has a logit but no value.

    pairs: logits [B, S, H, n] and mask, bool, broadcast to them, for each set. Returns the shares
    of each set, in the logits' dtype.
    """
    sets = [
        (logits.to(torch.float32) * scale).masked_fill(~mask, -torch.inf)
        for logits, mask in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    ceiling = sink.expand(sets[0].shape[:-1])
    for logits in sets:
        ceiling = torch.maximum(ceiling, logits.amax(-1))
    ceiling = ceiling.detach()[..., None]
    weights = [torch.exp(logits - ceiling) for logits in sets]
    total = torch.exp(sink[:, None] - ceiling)
    for weight in weights:
        total = total + weight.sum(-1, keepdim=True)
    return tuple((weight / total).to(pairs[0].dtype) for weight in weights)


def index_scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """query [B, s, Hi, Ci], weights [B, s, Hi], keys [B, N, Ci] -> float32 [B, s, N]."""
    match = torch.relu(query.flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, weights.shape[1:])
    return (weights.unsqueeze(2) @ match).squeeze(2).to(torch.float32)


def choose(scores: Tensor, allowed: Tensor, topk: int) -> Tensor:
    """The topk best allowed entries of each row, ties to the first: bool [B, S, N]."""
    if scores.shape[-1] <= topk:
        return allowed
    ranked = scores.masked_fill(~allowed, -torch.inf)
    least = ranked.topk(topk, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = ranked > least, (ranked == least) & allowed
    room = topk - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))
