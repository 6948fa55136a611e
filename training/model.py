"""The backbone's forward over whole sequences, for training: the modules and parameters of the
project's `Network`, with attention as `attention.py` computes it.

A test shows that loss and gradients are those of `Network`. Also the losses: of the next token, and
of the indexers. Knows nothing of optimizers, schedules or files.
"""

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from deepinfer.config.model import ModelConfig
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.values import rotary
from deepinfer.model.attention import Angles
from deepinfer.model.basic import Setup
from deepinfer.model.batch import lookback
from deepinfer.model.engram import ResidentTable
from deepinfer.model.layer import Flow, start_flow
from deepinfer.model.network import Network
from training.attention import Mode, Shared, attention, start_shared

# Rows whose logits exist at one time.
_HEAD_ROWS = 1 << 14


class Seen(NamedTuple):
    """What the layers make of [B, S] tokens.

    final [B * S, D]: the head's input. features [B * S, num_taps * D]: the draft module's. shared:
    selections, and lessons of the indexers.
    """

    final: Tensor
    features: Tensor
    shared: Shared


def make_network(
    config: ModelConfig,
    token_map: list[int],
    kernels: KernelSet,
    *,
    dtype: torch.dtype,
    device: str,
) -> Network:
    """A Network with parameters to be filled, the Engram tables among them."""
    with torch.device(device):
        network = Network(Setup(config, kernels, dtype, None), token_map)
        for plan, layer in zip(network.plans, network.layers, strict=True):
            if plan.engram_id is not None:
                rows = config.engram_num_embeddings[plan.engram_id]
                table = torch.empty(rows, config.engram_head_dim, dtype=dtype)
                layer.engram.table = ResidentTable(table)
    return network


def run_layers(
    network: Network, token_ids: Tensor, mode: Mode, replay: Tensor | None = None
) -> Seen:
    """All layers over int64 [B, S], S a multiple of the window and of every ratio.

    replay: int64 [B, S] or None, see `start_shared`.
    """
    c = network.setup.config
    shared = start_shared(token_ids, c.sliding_window, replay)
    before = lookback(token_ids, c.engram_max_ngram_size).flatten(0, 1)
    angles = _angles(network, token_ids.shape)
    flow = start_flow(network.embed(token_ids.flatten()), c.hc_mult)
    taps = []
    for plan, layer in zip(network.plans, network.layers, strict=True):
        if plan.engram_id is not None:
            flow = flow.settled(network.kernels)
            flow = Flow(layer.engram(flow.streams, before), flow.pre)
        if plan.tap_id is not None:
            flow = flow.settled(network.kernels)
            taps.append(flow.streams.to(torch.float32).mean(1).to(flow.streams.dtype))
        attend = partial(attention, layer.attn, angles[plan.ratio], mode, shared)
        flow = layer.around(flow, attend)
    kernels = network.kernels
    final = kernels.leave_streams(flow.streams, flow.pre, flow.written, network.norm.gain)
    return Seen(final, torch.cat(taps, -1) if taps else final[:, :0], shared)


def _angles(network: Network, shape: torch.Size) -> dict[int, Angles]:
    """Angles of all rows of [B, S], by ratio."""
    num, length = shape
    positions = torch.arange(length, device=network.window_frequencies.device)
    rows = positions.repeat(num)
    angles = {0: Angles(rotary(rows, network.window_frequencies))}
    for ratio in sorted(set(network.setup.config.compress_ratios) - {0}):
        entries = rotary(positions[::ratio].repeat(num), network.entry_frequencies)
        angles[ratio] = Angles(rotary(rows, network.entry_frequencies), entries)
    return angles


def token_loss(network: Network, final: Tensor, token_ids: Tensor, weight: Tensor) -> Tensor:
    """Weighted mean cross entropy of each next token.

    final [B * S, D], token_ids int64 [B, S]; weight float32 [B, S] of each token as a target.
    """
    wanted = F.pad(token_ids[:, 1:], (0, 1)).flatten()
    weight = F.pad(weight[:, 1:], (0, 1)).flatten()
    total = final.new_zeros((), dtype=torch.float32)
    for rows in range(0, len(final), _HEAD_ROWS):
        part = slice(rows, rows + _HEAD_ROWS)
        losses = F.cross_entropy(network.head(final[part]), wanted[part], reduction="none")
        total = total + (losses * weight[part]).sum()
    return total / weight.sum().clamp_min(1.0)


def index_loss(shared: Shared) -> Tensor:
    """Divergence of the indexers' scores, as a distribution over entries, from the attention that
    the layers pay to the entries: sum over indexers, mean over rows. A row counts as much as it
    looks at entries: where the window holds all that matters it is no loss to select anything.
    """
    losses = []
    for source, scores in shared.scores.items():
        mass = shared.mass[source]
        looks = mass.sum(-1)
        wanted = mass / looks[..., None].clamp_min(1e-9)
        # A row that sees no entry has nothing but -inf; its wanted shares are all 0.
        seen = scores > -torch.inf
        logs = scores.masked_fill(~seen, -1e4).log_softmax(-1)
        divergence = wanted * (wanted.clamp_min(1e-9).log() - logs)
        of_rows = divergence.masked_fill(~seen, 0.0).sum(-1)
        losses.append((of_rows * looks).sum() / looks.sum().clamp_min(1e-9))
    return torch.stack(losses).sum()
