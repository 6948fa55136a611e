"""Compressor: tokens -> entries and their index keys, in the layers that own KV (spec 7.3, 7.4)."""

from torch import Tensor, nn

from deepinfer.config.layers import LayerPlan
from deepinfer.kernels.values import Rotary
from deepinfer.model.basic import Joint, Linear, RMSNorm, Setup
from deepinfer.model.batch import EntryRows, KVStore


class Compressor(nn.Module):
    """Pools `ratio` tokens into one latent. The first of a pair may lie in the store."""

    def __init__(self, setup: Setup, plan: LayerPlan) -> None:
        super().__init__()
        c, kernels = setup.config, setup.kernels
        self.kernels, self.plan, self.dtype = kernels, plan, setup.dtype
        # Pooled values stay float32 until the pooling is done; a single token needs no pooling.
        op = kernels.linear if plan.ratio == 1 else kernels.linear_float32
        self.wkv = Linear(setup, op, c.hidden_size, c.head_dim)
        if plan.ratio > 1:
            self.wgate = Linear(setup, op, c.hidden_size, c.head_dim)
            self.from_input = Joint(setup, self.wkv, self.wgate)
        self.norm = RMSNorm(setup, c.head_dim)

    def forward(self, u: Tensor, rows: EntryRows, store: KVStore) -> Tensor:
        """u [T, D] -> latents of the entries completed now, [E, C], not rotated or quantised."""
        if self.plan.ratio == 1:
            values = self.wkv(u)
        else:
            values, scores = store.pending(self.plan.layer_id, *self.from_input(u))
            values = self.kernels.pool_members(values, scores, rows.members)
        return self.norm(values.to(self.dtype))


def entry_from_latent(setup: Setup, latent: Tensor, rotary: Rotary) -> Tensor:
    """Latents [E, C] -> entries [E, C]: rotated at the entry's position, then in the cache's
    format.
    """
    return setup.kernels.entry_rows(latent, rotary, is_fp4=setup.config.use_fp4_sparse_kv)
