"""One server of the demo model for all tests that are its clients; each test leaves it idle."""

from collections.abc import Iterator

import pytest

from tests.server.servers import DEMO, ServerProcess, serving


@pytest.fixture(scope="session")
def demo_server() -> Iterator[ServerProcess]:
    """A server of the demo model, float32 and batch-invariant: equal requests get equal answers."""
    options = ("--dtype", "float32", "--served-model-name", "demo", "--max-num-seqs", "32")
    with serving(DEMO, *options) as server:
        yield server
