"""Which part of a step a kernel took: beside each other, no time is counted twice."""

import pytest

pytest.importorskip("triton")

from deepinfer.bench.gpu.rank import own_times


@pytest.mark.parametrize(
    ("spans", "times"),
    [
        ([], []),
        ([(0, 2), (2, 5)], [2, 3]),
        ([(0, 2), (4, 5)], [2, 1]),  # nothing ran between
        ([(0, 4), (1, 6)], [4, 2]),  # started early, and waited
        ([(1, 6), (0, 4)], [2, 4]),  # as they come
        ([(0, 6), (1, 3)], [6, 0]),  # beside a longer one
        ([(1, 3), (0, 6), (5, 8)], [0, 6, 2]),
    ],
)
def test_own_times(spans: list[tuple[float, float]], times: list[float]) -> None:
    """Parts take more than the step together, and the one that waits seems to be the slow one."""
    assert own_times(spans) == times
