"""Plans and logits for the tests of sampling."""

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels.reference.pick import pick
from deepinfer.sampling import drafts
from deepinfer.sampling import sample as sample_module
from deepinfer.step import SamplePlan, TokenLists

sample = partial(sample_module.sample, pick=pick)
draft_tokens = partial(drafts.draft_tokens, pick=pick)

PER_ROW: dict[str, tuple[type, float]] = {
    "temperature": (np.float32, 0.0),
    "top_k": (np.int32, -1),
    "top_p": (np.float32, 1.0),
    "min_p": (np.float32, 0.0),
    "seeds": (np.int64, 0),
    "choices": (np.int32, 0),
    "positions": (np.int64, 0),
    "repetition": (np.float32, 1.0),
    "presence": (np.float32, 0.0),
    "frequency": (np.float32, 0.0),
    "forced": (np.int32, -1),
    "num_logprobs": (np.int32, -1),
}
OPTIONAL: dict[str, type] = {"draft_ids": np.int32, "is_rejection": np.bool_}
LISTS = ("seen", "produced", "bias", "banned")
Pairs = list[dict[int, float]]


def random_logits(seed: int, rows: int, vocab_size: int) -> Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def token_lists(rows: Pairs) -> TokenLists:
    """{token: weight} of each row."""
    pairs = [(row, *pair) for row, tokens in enumerate(rows) for pair in tokens.items()]
    row_ids, token_ids, weights = zip(*pairs, strict=True) if pairs else ((), (), ())
    return TokenLists(
        np.array(row_ids, np.int32), np.array(token_ids, np.int32), np.array(weights, np.float32)
    )


def make_plan(num_rows: int, **changes: Any) -> SamplePlan:
    """Greedy rows that ask for nothing, but for `changes`: a number for all rows, a list of one a
    row, or for the lists a {token: weight} a row; `allowed`: the only tokens of all rows."""
    fields: dict[str, Any] = {
        name: np.broadcast_to(np.asarray(changes.get(name, default), dtype), num_rows).copy()
        for name, (dtype, default) in PER_ROW.items()
    }
    for name in LISTS:
        fields[name] = token_lists(changes.get(name, []))
    for name in OPTIONAL.keys() & changes.keys():
        value = np.asarray(changes[name], OPTIONAL[name])
        fields[name] = np.broadcast_to(value, num_rows).copy()
    if allowed := changes.pop("allowed", None):
        fields["mask_rows"] = np.arange(num_rows, dtype=np.int32)
        fields["masks"] = np.full((num_rows, 1), sum(1 << i for i in allowed), np.int32)
    assert not set(changes) - set(fields)
    return SamplePlan(**fields)
