"""Recordings: what is kept by size, what blanks are for, and that a recorder is asked once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from deepinfer.worker import graphs
from deepinfer.worker.graphs import Inputs, Recordings, padded


def test_sizes() -> None:
    """Small steps are padded, or large ones have a graph for each number of rows."""
    assert [padded(n) for n in range(1, 18)] == [*range(1, 17), 18]
    assert [padded(n) for n in (33, 100, 129, 1000, 1024)] == [36, 104, 144, 1024, 1024]
    sizes = {padded(n) for n in range(1, 1025)}
    assert len(sizes) == 16 + 6 * 8
    assert all(n <= padded(n) <= n * 9 / 8 for n in range(1, 1025))


def zeros(*shape: int) -> Inputs:
    return Inputs([torch.full(shape, 7)], [torch.full(shape, -1)])


def test_inputs_are_filled() -> None:
    """What a larger step left stays where a smaller one has nothing."""
    inputs = zeros(3, 2)
    inputs.fill([torch.ones(2, 1, dtype=torch.int64)])
    assert inputs.tensors[0].tolist() == [[1, -1], [1, -1], [-1, -1]]
    inputs.fill([torch.full((1, 2), 4)])
    assert inputs.tensors[0].tolist() == [[4, 4], [-1, -1], [-1, -1]]


def test_recorded_the_second_time() -> None:
    """A size that comes once costs a recording; or one that comes often is never recorded, or
    recorded with the inputs of another."""
    recorded = []

    def record(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        recorded.append(function)
        return function

    def total(tensors: Sequence[Tensor]) -> Tensor:
        return tensors[0].sum()

    recordings = Recordings(record)
    for size, values, recordings_made in (
        (3, [1, 2], 0),
        (4, [1, 2, 3, 4], 0),
        (3, [5], 1),
        (3, [1, 1, 1], 1),
        (4, [2], 2),
    ):
        value = torch.tensor(values)
        found = recordings.run(size, lambda size=size: zeros(size), [value], total)
        assert found == sum(values) - (size - len(values))
        assert len(recorded) == recordings_made


def test_no_more_than_some_are_kept(monkeypatch) -> None:
    """Sizes come and go for weeks, and each keeps its memory."""
    monkeypatch.setattr(graphs, "_MOST_KEPT", 2)
    recorded = []
    recordings = Recordings(lambda function: recorded.append(1) or function)
    for size in (1, 2, 1, 3, 1, 2):  # 2 is the one that was not used for longest, twice
        recordings.run(size, lambda size=size: zeros(size), [torch.ones(1)], lambda ts: ts[0])
    assert len(recorded) == 1


def test_what_cannot_be_recorded(caplog) -> None:
    """No memory is left for another graph: requests fail that op by op would have been served, or a
    recording is tried in every step, or nobody hears of it."""
    asked = []

    def record(function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        asked.append(function)
        raise torch.OutOfMemoryError("no room")

    recordings = Recordings(record)
    for number in (1, 2, 3):
        found = recordings.run(3, lambda: zeros(3), [torch.tensor([number])], lambda ts: ts[0] * 2)
        assert found.tolist() == [2 * number, -2, -2]
    assert len(asked) == 1
    assert "op by op" in caplog.text and "no room" in caplog.text
