"""Core attention over window and selected entries, with a sink (spec 7.6)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.kernels.reference.linear import row_product

# Largest gathered tensor, in elements: [rows, attended, head_dim]. What is gathered is read twice
# more: beyond the cache of a core that takes three times as long.
_CHUNK_ELEMENTS = 1 << 19


def attend(
    query: Tensor,
    sink: Tensor,
    scale: float,
    window: Tensor,
    window_index: Tensor,
    entries: Tensor | None = None,
    entry_index: Tensor | None = None,
) -> Tensor:
    """Attention of each row over the listed vectors, each both key and value: [T, H, C] in query's
    dtype.

    query [T, H, C]; sink float32 [H], a logit without a value; window [*, C] and entries [*, C] are
    stores; window_index int64 [T, W] and entry_index int64 [T, K] list the store rows a query row
    attends to, -1 for none. A token met in both lists counts twice. A row with nothing to attend to
    gives 0. float32 inside; one rounding at the end.
    """
    stores = [(window, window_index)]
    if entries is not None and entry_index is not None:
        stores.append((entries, entry_index))
    width = sum(index.shape[1] for _, index in stores)
    rows = max(1, _CHUNK_ELEMENTS // max(1, width * query.shape[-1]))
    parts = []
    for start in range(0, query.shape[0], rows):
        chunk = slice(start, start + rows)
        absent = torch.cat([lists[chunk] for _, lists in stores], 1) < 0
        gathered = torch.cat([_gather(store, lists[chunk]) for store, lists in stores], 1)
        # What stands for "none" is some row of a store: its weight is 0, but 0 times NaN is NaN.
        # (In place here and below: a pass over memory costs as much as a product.)
        nothing = absent.flatten().nonzero().squeeze(1)
        gathered = gathered.flatten(0, 1).index_fill_(0, nothing, 0).view(gathered.shape)
        parts.append(
            _attend_gathered(query[chunk], sink, scale, gathered.to(torch.float32), absent)
        )
    return torch.cat(parts) if parts else torch.empty_like(query)


def _gather(store: Tensor, index: Tensor) -> Tensor:
    """Store rows [T, n, C]. An embedding look-up, because its backward scatters fast."""
    if not store.shape[0]:
        return store.new_zeros(*index.shape, store.shape[1])
    return F.embedding(index.clamp_min(0), store)


def _attend_gathered(
    query: Tensor, sink: Tensor, scale: float, kv: Tensor, absent: Tensor
) -> Tensor:
    """query [t, H, C], kv float32 [t, n, C], absent bool [t, n] -> [t, H, C]."""
    logits = row_product(query.to(torch.float32), kv.transpose(1, 2)).mul_(scale)
    logits.masked_fill_(absent[:, None], -torch.inf)
    # The sink takes part in the maximum, so the maximum is finite even when every logit is -inf.
    with torch.no_grad():
        ceiling = sink.expand(logits.shape[:2])
        if logits.shape[-1]:
            ceiling = torch.maximum(logits.amax(-1), ceiling)
    weights = logits.sub_(ceiling[..., None]).exp_()
    total = weights.sum(-1) + torch.exp(sink - ceiling)
    return (row_product(weights, kv) / total[..., None]).to(query.dtype)
