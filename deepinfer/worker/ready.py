"""What the network reads besides weights, made of a step's indices and the pools."""

from dataclasses import dataclass

from torch import Tensor

from deepinfer.model.batch import Batch, EntryRows, Rest
from deepinfer.model.network import Network
from deepinfer.step import StepPlan
from deepinfer.worker.pools import PagedStore, Pools, StoreIndex
from deepinfer.worker.step_index import StepIndex


@dataclass(frozen=True)
class Ready:
    """What the network needs to run a plan's rows.

    plan, index: of the rows that run through all layers. rest: as of `Network.run`.
    """

    plan: StepPlan
    index: StepIndex
    batch: Batch
    store: PagedStore
    rest: Rest | None


def batch_of(token_ids: Tensor, lookback: Tensor, index: StepIndex) -> Batch:
    """The rows of a step: token_ids int64 [T], lookback int64 [T, n] as `Batch` has it."""
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


def store_of(network: Network, pools: Pools, index: StepIndex) -> PagedStore:
    """Where these rows leave and find what is kept."""
    store_index = StoreIndex(
        history=index.history,
        window_rows=index.window_rows,
        window_write=index.window_write,
        slack_rows=index.slack_rows,
        slack_write=index.slack_write,
        slack_read=index.slack_read,
        entry_write={
            plan.layer_id: index.entries[plan.ratio].write for plan in network.plans if plan.owns_kv
        },
    )
    return PagedStore(pools, store_index)
