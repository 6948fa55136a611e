"""What the network reads besides weights, made of a step's numbers and the pools."""

from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.model.batch import Batch, EntryRows, Rest
from deepinfer.model.network import Network
from deepinfer.worker.inputs import index_step
from deepinfer.worker.pools import PagedStore, Pools
from deepinfer.worker.step_index import StepIndex
from deepinfer.worker.step_numbers import StepNumbers


@dataclass(frozen=True)
class Ready:
    """Rows that the network can run. index: of those that run through all layers; rest: as of
    `Network.run`."""

    index: StepIndex
    batch: Batch
    store: PagedStore
    rest: Rest | None = None


def ready_rows(
    network: Network, pools: Pools, numbers: StepNumbers[Tensor], exact: Tensor, token_ids: Tensor
) -> Ready:
    """All rows of a step, whose tokens are int64 [T]; the slots keep the last of these.

    exact: int64 [B], where its sequences start.
    """
    index = index_step(network.setup.config, numbers, exact, pools.spare_block)
    batch = _batch(token_ids, _look_back(pools, token_ids, index), index)
    return Ready(index, batch, _store(network, pools, index))


def ready_rest(
    network: Network,
    pools: Pools,
    ready: Ready,
    rows: Tensor,
    numbers: StepNumbers[Tensor],
    exact: Tensor,
) -> Ready:
    """The same step where the decoder half runs some of its rows alone: int64 [R], their places
    among all; numbers and exact are of these."""
    if not len(rows):  # they stop before any layer reads these
        return Ready(ready.index, ready.batch, ready.store, Rest(rows, ready.batch, ready.store))
    index = index_step(network.setup.config, numbers, exact, pools.spare_block)
    batch = _batch(ready.batch.token_ids[rows], ready.batch.lookback[rows], index)
    rest = Rest(rows, batch, _store(network, pools, index))
    return Ready(index, ready.batch, ready.store, rest)


def _look_back(pools: Pools, token_ids: Tensor, index: StepIndex) -> Tensor:
    """`Batch.lookback`, and what later steps look back at."""
    kept_ids = pools.token_ids.flatten()
    kept = torch.cat((token_ids, kept_ids.to(token_ids.dtype)))
    lookback = kept[index.lookback.clamp_min(0)].masked_fill(index.lookback < 0, -1)
    kept_ids.index_copy_(0, index.slack_write, token_ids[index.slack_rows].to(kept_ids.dtype))
    return lookback


def _batch(token_ids: Tensor, lookback: Tensor, index: StepIndex) -> Batch:
    return Batch(
        token_ids=token_ids,
        positions=index.positions,
        lookback=lookback,
        sequence_ids=index.sequence_ids,
        groups=index.groups,
        window_index=index.window_index,
        decoder_window_index=index.decoder_window_index,
        entries={
            ratio: EntryRows(
                members=rows.members,
                positions=rows.positions,
                blocks=rows.blocks,
                per_block=rows.per_block,
                num_visible=rows.num_visible,
            )
            for ratio, rows in index.entries.items()
        },
    )


def _store(network: Network, pools: Pools, index: StepIndex) -> PagedStore:
    """Where these rows leave and find what is kept."""
    ratios = {plan.layer_id: plan.ratio for plan in network.plans if plan.owns_kv}
    return PagedStore(pools, index, ratios)
