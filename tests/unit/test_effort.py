"""The limit of effort holds: it is what many other tests stand on."""

import pytest

from tests.effort import effort


def test_a_limit_that_holds() -> None:
    """A limit that nothing reaches, or that everything does, guards nothing."""
    with effort(20):
        sum(range(1_000_000))
    with pytest.raises(AssertionError, match="million turns"), effort(0.1):
        sum(range(10_000_000))
