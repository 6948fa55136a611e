"""How long a device had nothing to do: what spans leave open."""

import pytest

from deepinfer.bench.gpu.gap import idle_share


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
