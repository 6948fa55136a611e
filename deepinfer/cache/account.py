"""Where the memory goes: one account, for `deepinfer plan` and for the log of a start.

Arithmetic on sizes. Knows no tensor, and not whether the sizes were planned or allocated.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from deepinfer.config.model import ModelConfig

_LOGIT_BYTES, _LOGIT_COPIES = 4, 3  # float32: as they come, sorted, and as probabilities


@dataclass(frozen=True, slots=True)
class Account:
    """Bytes. memory: all there is. weights: those of the draft module apart, in drafts. workspace:
    what the largest step may need beside all that is kept; an estimate, all else is exact."""

    memory: int
    weights: int
    drafts: int
    num_blocks: int
    block_bytes: int
    num_slots: int
    slot_bytes: int
    workspace: int

    @property
    def remains(self) -> int:
        """What nobody has; below 0 it does not fit."""
        pools = self.num_blocks * self.block_bytes + self.num_slots * self.slot_bytes
        return self.memory - self.weights - self.drafts - pools - self.workspace


def workspace_bytes(
    config: ModelConfig, num_rows: int, num_drawn: int, value_bytes: int, block_bytes: int
) -> int:
    """Of a step of `num_rows` rows that draws `num_drawn` tokens: the logits, the keys that the
    rows of one layer gather, its experts' products, the residual streams; and one spare block.

    value_bytes: of what is computed in.
    """
    logits = num_drawn * config.vocab_size * _LOGIT_BYTES * _LOGIT_COPIES
    gathered = (config.sliding_window + config.index_topk) * config.head_dim
    each = config.num_experts_per_tok * (2 * config.moe_intermediate_size + config.hidden_size)
    streams = 2 * config.hc_mult * config.hidden_size
    return logits + num_rows * (gathered + each + streams) * value_bytes + block_bytes


def account_lines(account: Account) -> Iterator[str]:
    """The account as a table of bytes."""
    a = account
    for title, num_bytes in (
        ("memory", a.memory),
        ("weights", a.weights),
        ("the draft module's", a.drafts),
        (f"{a.num_blocks:,} blocks of {a.block_bytes:,}", a.num_blocks * a.block_bytes),
        (f"{a.num_slots:,} slots of {a.slot_bytes:,}", a.num_slots * a.slot_bytes),
        ("a step's own tensors, about", a.workspace),
        ("remain", a.remains),
    ):
        yield f"{title:38}{num_bytes:>20,}"
