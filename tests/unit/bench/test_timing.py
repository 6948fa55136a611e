"""What a device did by its kernels' spans: whose time it was, and how long it had nothing to do."""

import pytest

from deepinfer.bench.gpu.timing import idle_share, own_times


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(0, 1)], 0),
        ([(0, 1), (1, 4)], 0),
        ([(0, 1), (3, 4)], 0.5),
        ([(3, 4), (0, 1)], 0.5),  # as they come
        ([(0, 3), (1, 2), (3, 4)], 0),  # one beside another
        ([(0, 2), (1, 3), (7, 10)], 0.4),
    ],
)
def test_idle_share(spans: list[tuple[float, float]], share: float) -> None:
    """Kernels that run beside each other are counted twice, and hide an idle device."""
    assert idle_share(spans) == pytest.approx(share)


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
