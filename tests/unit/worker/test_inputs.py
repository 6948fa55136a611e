"""Index arrays of steps, followed by hand: what a row reads must be what its positions left there.

Memory holds tags here, (sequence, position), in place of numbers. Sequences come in random steps,
slots and blocks are handed on without being cleaned.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deepinfer.cache.layout import BLOCK_TOKENS, SLACK_ROWS, blocks_for
from deepinfer.config.model import ModelConfig
from deepinfer.kernels.reference.index import entry_table
from deepinfer.step import StepPlan
from deepinfer.worker.follow import Starts
from deepinfer.worker.inputs import index_step
from deepinfer.worker.recorded import step_size
from deepinfer.worker.step_index import StepIndex
from deepinfer.worker.step_numbers import (
    FOLDED_ROWS,
    StepNumbers,
    StepSize,
    on_device_numbers,
    pad_numbers,
    step_numbers,
)

Tag = tuple[int, int]  # sequence, position
NUM_SLOTS, NUM_BLOCKS = 5, 20


def plan_of(
    rows: list[tuple[int, int, int, list[int]]], decoder_starts: list[int] | None = None
) -> StepPlan:
    """(slot, tokens computed, rows, blocks) of each sequence."""
    tables = np.full((len(rows), max(len(blocks) for *_, blocks in rows)), -1, np.int32)
    for table, (*_, blocks) in zip(tables, rows, strict=True):
        table[: len(blocks)] = blocks
    slots, computed, counts, _ = zip(*rows, strict=True)
    none = np.empty(0, np.int32)
    return StepPlan(
        slot_ids=np.array(slots, np.int32),
        num_computed=np.array(computed, np.int32),
        num_rows=np.array(counts, np.int32),
        block_tables=tables,
        decoder_starts=np.array(decoder_starts or [0] * len(rows), np.int32),
        window_starts=np.zeros(len(rows), np.int32),
        entry_starts=np.zeros(len(rows), np.int32),
        token_ids=np.zeros(sum(counts), np.int32),
        sample_rows=none,
        score_rows=none,
        score_ids=none,
    )


def index_of(
    config: Any, plan: StepPlan, starts: Starts | None = None, spare_block: int = 0
) -> StepIndex:
    """Of a plan that follows nothing, or of one that starts elsewhere."""
    numbers, exact = numbers_of(config, plan, starts)
    return index_step(config, on_device_numbers(numbers, "cpu"), exact, spare_block)


def numbers_of(
    config: Any, plan: StepPlan, starts: Starts | None
) -> tuple[StepNumbers[Any], Tensor]:
    if starts is None:
        least = plan.num_computed.astype(np.int64)
        starts = Starts(torch.from_numpy(least), least, least)
    return step_numbers(config, plan, starts), starts.exact


def config_of(window: int, ngram_size: int = 4) -> Any:
    return SimpleNamespace(
        sliding_window=window, engram_max_ngram_size=ngram_size, compress_ratios=(0, 2, 1, 0, 2)
    )


@dataclass
class Sequence:
    """One that runs. done: tokens that are computed. decoder_start: as in the plan."""

    name: int
    length: int
    slot: int
    blocks: list[int]
    decoder_start: int = 0
    done: int = 0


def listed(tensor: Tensor) -> list[int]:
    return tensor.tolist()


@dataclass
class Memory:
    """Tags by place; what the network and its store would do with a step's indices.

    rng: now and then the host knows only bounds of where a sequence's rows start; None never.
    """

    window: int
    rng: random.Random | None = None
    ring: dict[int, Tag] = field(default_factory=dict)
    slack: dict[int, Tag] = field(default_factory=dict)
    entries: dict[tuple[int, int], tuple[Tag, ...]] = field(default_factory=dict)

    def follow(self, sequences: list[Sequence], counts: list[int]) -> None:
        """Check one step against the rows' tags, and store them."""
        plan = plan_of(
            [(s.slot, s.done, count, s.blocks) for s, count in zip(sequences, counts, strict=True)],
            [s.decoder_start for s in sequences],
        )
        starts = self._starts(sequences)
        index = index_of(config_of(self.window), plan, starts, NUM_BLOCKS)
        check_padding(config_of(self.window), plan, starts, index)
        pairs = list(zip(sequences, counts, strict=True))
        tags = [(s.name, s.done + place) for s, count in pairs for place in range(count)]
        assert index.positions.tolist() == [position for _, position in tags]
        owners = [number for number, count in enumerate(counts) for _ in range(count)]
        assert index.sequence_ids.tolist() == owners
        self._window(index, tags, {s.name: s.decoder_start for s in sequences})
        self._slack(index, tags, sequences)
        for ratio in (1, 2):
            self._entries(index, ratio, tags, sequences)
        assert sorted(index.entries) == [1, 2]

    def _starts(self, sequences: list[Sequence]) -> Starts | None:
        rng = self.rng
        if rng is None or rng.random() < 0.3:
            return None
        exact = np.array([s.done for s in sequences], np.int64)
        doubtful = np.array([rng.random() < 0.7 and s.done > 8 for s in sequences])
        least = exact - doubtful * np.array([rng.randint(0, 5) for _ in sequences])
        most = np.where(doubtful, least + 5, exact)
        # There are blocks for the highest position.
        room = np.array([len(s.blocks) * BLOCK_TOKENS - 200 for s in sequences])
        return Starts(torch.from_numpy(exact), least, np.maximum(exact, np.minimum(most, room)))

    def _window(self, index: StepIndex, tags: list[Tag], starts: dict[int, int]) -> None:
        history = (
            None if index.history is None else [self.ring.get(i) for i in listed(index.history)]
        )
        for row, place in zip(listed(index.window_rows), listed(index.window_write), strict=True):
            self.ring[int(place)] = tags[row]
        assert len(set(index.window_write.tolist())) == len(index.window_write)
        for of_all, begin in ((index.window_index, {}), (index.decoder_window_index, starts)):
            for (name, position), seen in zip(tags, of_all.tolist(), strict=True):
                window = range(position - self.window + 1, position + 1)
                expected = [(name, p) if p >= begin.get(name, 0) else None for p in window]
                found = [None if i < 0 else self._seen(i, history, tags) for i in seen]
                assert found == expected

    def _seen(self, i: int, history: list[Tag | None] | None, tags: list[Tag]) -> Tag | None:
        return self.ring.get(i) if history is None else [*history, *tags][i]

    def _slack(self, index: StepIndex, tags: list[Tag], sequences: list[Sequence]) -> None:
        kept = [self.slack.get(i) for i in range(NUM_SLOTS * SLACK_ROWS)]
        for (name, position), back in zip(tags, index.lookback.tolist(), strict=True):
            found = [None if i < 0 else [*tags, *kept][i] for i in back]
            wanted = range(position, position - len(back), -1)
            assert found == [(name, p) if p >= 0 else None for p in wanted]
        self.before = [self.slack.get(int(i)) for i in index.slack_read]
        for sequence, tag in zip(sequences, self.before, strict=True):
            assert not sequence.done or tag == (sequence.name, sequence.done - 1)
        for row, place in zip(listed(index.slack_rows), listed(index.slack_write), strict=True):
            self.slack[int(place)] = tags[row]

    def _entries(
        self, index: StepIndex, ratio: int, tags: list[Tag], sequences: list[Sequence]
    ) -> None:
        rows = index.entries[ratio]
        store = [*tags, *self.before]
        new = [tuple(store[i] for i in members) for members in rows.members.tolist()]
        spare = NUM_BLOCKS * BLOCK_TOKENS // ratio
        written = [place for place in rows.write.tolist() if place != spare]
        for place, entry, position in zip(
            rows.write.tolist(), new, rows.positions.tolist(), strict=True
        ):
            if place == spare:
                continue
            (name, first), *_ = entry
            assert entry == tuple((name, first + i) for i in range(ratio))
            assert position == first
            assert first % ratio == 0
            self.entries[ratio, place] = entry
        assert len(set(written)) == len(written)
        starts = {s.name: s.done for s in sequences}
        assert len(written) == sum(
            (position + 1) % ratio == 0 and position >= starts[name] for name, position in tags
        )
        assert rows.per_block == BLOCK_TOKENS // ratio
        table = entry_table(rows.blocks, rows.per_block)
        for row, (name, position) in enumerate(tags):
            visible = (position + 1) // ratio
            assert rows.num_visible[row] == visible
            places = table[index.sequence_ids[row], :visible].tolist()
            found = [self.entries[ratio, place] for place in places]
            assert found == [
                tuple((name, j * ratio + i) for i in range(ratio)) for j in range(visible)
            ]
        assert (table >= 0).all()


def check_padding(config: Any, plan: StepPlan, starts: Starts | None, index: StepIndex) -> None:
    """A padded decode step: its own rows are where they were, the others are nobody's."""
    numbers, exact = numbers_of(config, plan, starts)
    size = step_size(numbers)
    assert (size is None) == (max(plan.num_rows) > FOLDED_ROWS)
    if size is None:
        return
    num_rows, count = len(index.positions), len(plan.slot_ids)
    size = StepSize(size.rows + 3, size.sequences + 2, size.each, size.blocks)
    still = pad_numbers(numbers, size, NUM_SLOTS)
    exact = torch.nn.functional.pad(exact, (0, size.sequences - count))
    wide = index_step(config, on_device_numbers(still, "cpu"), exact, NUM_BLOCKS)
    ring = config.sliding_window + SLACK_ROWS
    for name, spare in (
        ("positions", {0}),
        ("window_index", {-1}),
        ("decoder_window_index", {-1}),
        ("window_write", set(range(NUM_SLOTS * ring, (NUM_SLOTS + 1) * ring))),
        ("slack_write", set(range(NUM_SLOTS * SLACK_ROWS, (NUM_SLOTS + 1) * SLACK_ROWS))),
    ):
        found = getattr(wide, name)
        assert torch.equal(found[:num_rows], getattr(index, name))
        assert set(found[num_rows:].flatten().tolist()) <= spare
    assert torch.equal(wide.slack_read[:count], index.slack_read)
    behind = index.lookback + (size.rows - num_rows) * (index.lookback >= num_rows)
    assert torch.equal(wide.lookback[:num_rows], behind)
    assert set(wide.lookback[num_rows:].flatten().tolist()) == {-1}
    (group,), (old_group,) = wide.groups, index.groups
    assert torch.equal(group[:count, : old_group.shape[1]], old_group)
    assert (group >= 0).sum() == num_rows
    for ratio, old in index.entries.items():
        new, num_entries = wide.entries[ratio], len(old.write)
        behind = old.members + (size.rows - num_rows) * (old.members >= num_rows)
        assert torch.equal(new.members[:num_entries], behind)
        assert torch.equal(new.positions[:num_entries], old.positions)
        assert torch.equal(new.write[:num_entries], old.write)
        assert set(new.write[num_entries:].tolist()) <= {NUM_BLOCKS * old.per_block}
        assert torch.equal(new.num_visible[:num_rows], old.num_visible)
        assert set(new.num_visible[num_rows:].tolist()) == {0}


def sequences_that_come(rng: random.Random, num: int) -> Iterator[Sequence]:
    for name in range(num):
        length = rng.choice([1, 2, 5, 30, 127, 128, 129, 300])
        yield Sequence(name, length, -1, [], decoder_start=rng.choice([0, 0, length // 2, length]))


@pytest.mark.parametrize("is_doubtful", [False, True])
@pytest.mark.parametrize("window", [1, 8, 16, 128])
@pytest.mark.parametrize("seed", range(4))
def test_every_row_reads_its_own(window: int, seed: int, is_doubtful: bool) -> None:
    """A02, A12, A13, A14, B02: a window, a pending half, a look-back or an entry of someone else,
    of another position, or of the slot's last tenant; replay hides too much, too little, or from a
    neighbour."""
    rng = random.Random(seed)
    memory = Memory(window, random.Random(seed) if is_doubtful else None)
    slots, blocks = list(range(NUM_SLOTS)), list(range(NUM_BLOCKS))
    coming, running = sequences_that_come(rng, 14), []
    waiting = next(coming, None)
    while waiting or running:
        while waiting and slots and len(blocks) >= blocks_for(waiting.length):
            waiting.slot = slots.pop(rng.randrange(len(slots)))
            waiting.blocks = [
                blocks.pop(rng.randrange(len(blocks))) for _ in range(blocks_for(waiting.length))
            ]
            running.append(waiting)
            waiting = next(coming, None)
        chosen = rng.sample(running, rng.randint(1, len(running)))
        sizes = [min(s.length - s.done, rng.choice([1, 2, 7, 9, 10, 40, 200])) for s in chosen]
        memory.follow(chosen, sizes)
        for sequence, size in zip(chosen, sizes, strict=True):
            sequence.done += size
            if sequence.done == sequence.length:
                running.remove(sequence)
                slots.append(sequence.slot)
                blocks += sequence.blocks


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1], [[[0]]]),
        ([1, 1, 1], [[[0], [1], [2]]]),
        ([2, 1], [[[0, 1], [2, -1]]]),
        ([8, 9, 1], [[[*range(8)], [17] + [-1] * 7], [[*range(8, 17)]]]),
        ([9, 300], [[[*range(9)]], [[*range(9, 309)]]]),
    ],
)
def test_groups(counts: list[int], expected: list[list[list[int]]]) -> None:
    """A08: a row is scored twice, never, or with another sequence's keys."""
    index = index_of(config_of(8), plan_of([(i, 0, n, [i] * 3) for i, n in enumerate(counts)]))
    assert [group.tolist() for group in index.groups] == expected


def test_a_single_row_pays_for_no_history(tiny_config: ModelConfig) -> None:
    """Each generated token copies its window; or a long chunk reads what it has written over."""
    slack = SLACK_ROWS + 1
    for counts, copies in (([1, 1], False), ([slack, 1], False), ([slack + 1, 1], True)):
        plan = plan_of([(i, 40, n, [i]) for i, n in enumerate(counts)])
        index = index_of(tiny_config, plan)
        assert (index.history is not None) == copies
        if not copies:
            assert listed(index.window_rows) == [*range(sum(counts))]
            assert len(index.window_write) == sum(counts)


def test_what_hides_nothing_costs_nothing() -> None:
    """Each generated token pays for a second window index, with replay off or long prompts."""
    for done, start, costs in ((40, 0, False), (0, 0, False), (40, 33, False), (40, 34, True)):
        index = index_of(config_of(8), plan_of([(0, done, 1, [0]), (1, 90, 1, [1])], [start, 0]))
        assert (index.decoder_window_index is not index.window_index) == costs


def test_widths_are_whole_blocks(tiny_config: ModelConfig) -> None:
    """F02: the first tokens of a sequence have tables of a few entries, which libraries sum in
    another order."""
    for done, width in ((0, 128), (127, 128), (128, 256)):
        plan = plan_of([(0, done, 1, [3, 4, 5])])
        rows = index_of(tiny_config, plan).entries[1]
        assert rows.blocks.shape[1] * rows.per_block == width
