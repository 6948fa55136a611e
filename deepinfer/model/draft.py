"""DSpark, the draft module: proposes a block of tokens in one pass (spec 11.1 to 11.3).

Its blocks are window layers. They never run on the main tokens: those only leave window KV, made
from the features tapped in the backbone. Verifying drafts is somebody else's business.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepinfer.config.layers import plan_draft_layers
from deepinfer.config.model import ModelConfig
from deepinfer.config.rope import rope_frequencies
from deepinfer.kernels.values import rotary
from deepinfer.model.attention import Angles, Carry
from deepinfer.model.basic import Embedding, Linear, RMSNorm, Setup
from deepinfer.model.batch import Batch, FreshStore
from deepinfer.model.layer import Layer, start_flow


class Proposal(NamedTuple):
    """Drafts of A sequences, n each.

    token_ids: int64 [A, n]; draft i stands at the anchor's position + 1 + i.
    logits: float32 [A, n, vocab], what each draft was chosen from.
    confidence: float32 [A, n], raw; sigmoid(confidence / temperature) estimates the chance that the
        draft is accepted if those before it are.
    """

    token_ids: Tensor
    logits: Tensor
    confidence: Tensor


class MarkovHead(nn.Module):
    """Bias of the next token's logits by the token before it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        c = setup.config
        self.embed = Embedding(setup, c.dspark_markov_rank)
        self.head = Linear(setup, setup.kernels.linear_float32, c.dspark_markov_rank, c.vocab_size)


class ConfidenceHead(nn.Module):
    """One number from a draft's hidden state and the embedding of the token before it."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        c, op = setup.config, setup.kernels.linear_float32
        self.proj = Linear(setup, op, c.hidden_size + c.dspark_markov_rank, 1)

    def forward(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """hidden [..., D] before the last norm, previous [..., rank] -> float32 [...]."""
        both = torch.cat((hidden, previous), -1).to(torch.float32)
        return (both * self.proj.weight[0].to(torch.float32)).sum(-1)


class Draft(nn.Module):
    """The draft module. Embedding and head are the backbone's and are passed in."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        c, kernels = setup.config, setup.kernels
        self.setup, self.kernels = setup, kernels
        num_features = len(c.dspark_target_layer_ids) * c.hidden_size
        self.main_proj = Linear(setup, kernels.linear_quantised, num_features, c.hidden_size)
        self.main_norm = RMSNorm(setup, c.hidden_size)
        self.blocks = nn.ModuleList(
            Layer(setup, plan, c.dspark_n_routed_experts, c.dspark_num_experts_per_tok)
            for plan in plan_draft_layers(c)
        )
        self.norm = RMSNorm(setup, c.hidden_size)
        self.markov_head = MarkovHead(setup)
        self.confidence_head = ConfidenceHead(setup)
        frequencies = torch.tensor(rope_frequencies(c, 0))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def main_kv(self, features: Tensor, positions: Tensor) -> dict[int, Tensor]:
        """Window KV that main tokens leave in each block: features [T, taps * D], positions int64
        [T] -> block number to [T, C]."""
        context = self.main_norm(self.main_proj(features))
        angles = rotary(positions, self.frequencies)
        return {
            i: block.attn.window_kv(block.attn.wkv(context), angles)
            for i, block in enumerate(self.blocks)
        }

    def run(self, x: Tensor, batch: Batch, store: FreshStore) -> Tensor:
        """Embeddings x [T, D] of the batch's rows through the blocks -> collapsed [T, D], not
        normed.
        """
        flow = start_flow(x, self.setup.config.hc_mult)
        angles = Angles(rotary(batch.positions, self.frequencies))
        for block in self.blocks:
            flow = block(flow, angles, batch, store, Carry())
        flow = flow.settled(self.kernels)
        return self.kernels.hyper_collapse(flow.streams, flow.pre)

    def propose(
        self,
        hidden: Tensor,
        golden_ids: Tensor,
        head: Callable[[Tensor], Tensor],
        pick: Callable[[Tensor, int], Tensor],
    ) -> Proposal:
        """The light sequential part: hidden [A, n, D] of `run`, golden_ids int64 [A] (the anchors'
        tokens).

        `head` is the backbone's; `pick(logits [A, vocab], i)` chooses draft i, int64 [A].
        """
        base = head(self.norm(hidden))
        previous, ids, logits, confidence = golden_ids, [], [], []
        for i in range(hidden.shape[1]):
            embedded = self.markov_head.embed(previous)
            logits.append(base[:, i] + self.markov_head.head(embedded))
            confidence.append(self.confidence_head(hidden[:, i], embedded))
            previous = pick(logits[-1], i)
            ids.append(previous)
        return Proposal(torch.stack(ids, 1), torch.stack(logits, 1), torch.stack(confidence, 1))


@dataclass(frozen=True)
class DraftStore(FreshStore):
    """Main tokens' window KV of each block, followed by the KV of the draft rows themselves."""

    main_kv: Mapping[int, Tensor]

    def window(self, layer_id: int, kv: Tensor) -> Tensor:
        """Rows of main tokens first, then the T draft rows."""
        return torch.cat((self.main_kv[layer_id].to(kv.dtype), kv))


def draft_batch(
    config: ModelConfig,
    golden_ids: Tensor,
    anchors: Tensor,
    first_rows: Tensor,
    num_main_rows: int,
    size: int | None = None,
) -> Batch:
    """Rows of A draft blocks, for use with DraftStore.

    golden_ids int64 [A], the tokens at the anchors, which the backbone has not seen yet; anchors
    int64 [A], their positions; first_rows int64 [A], the main row of position 0 of each anchor's
    sequence;
    num_main_rows: how many rows DraftStore.main_kv has. size: rows of a block, None for as many as
    the module was trained for. Each row sees the last `sliding_window`
    main tokens before its anchor and all rows of its own block, those after it too.
    """
    num_anchors, device = anchors.shape[0], anchors.device
    size = config.dspark_block_size if size is None else size
    token_ids = torch.full((num_anchors, size), config.dspark_noise_token_id, device=device)
    token_ids[:, 0] = golden_ids
    rows = torch.arange(num_anchors * size, device=device).view(num_anchors, size)
    main = anchors[:, None] + torch.arange(-config.sliding_window, 0, device=device)
    main = torch.where(main < 0, -1, main + first_rows[:, None])
    seen = torch.cat((main, rows + num_main_rows), 1).repeat_interleave(size, 0)
    return Batch(
        token_ids=token_ids.flatten(),
        positions=(anchors[:, None] + torch.arange(size, device=device)).flatten(),
        lookback=token_ids.flatten()[:, None],
        sequence_ids=torch.arange(num_anchors, device=device).repeat_interleave(size),
        groups=(rows,),
        window_index=seen,
        decoder_window_index=seen,
        entries={},
    )
