"""Laws of bounded replay: what it hides from the kept rows, they do not need."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from deepinfer.model.layer import Flow
from deepinfer.model.network import Network
from tests.laws.networks import run_whole

LENGTH = 80
WINDOW = 16  # the toy's
TOKENS = torch.randint(3, 500, (LENGTH,), generator=torch.Generator().manual_seed(5))[None]


@contextmanager
def disturbed(network: Network, rows: slice) -> Iterator[None]:
    """Each layer of the decoder half hands on noise for these rows."""
    generator = torch.Generator().manual_seed(6)

    def disturb(_module: object, _inputs: object, flow: Flow) -> Flow:
        flow = flow.settled(network.kernels)
        of_rows = flow.streams[rows]
        of_rows.copy_(torch.randn(of_rows.shape, generator=generator))
        return flow

    hooks = [
        layer.register_forward_hook(disturb) for layer in network.layers if layer.plan.in_decoder
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("mode", ["fp32", "bf16"])
@pytest.mark.parametrize("start", [1, WINDOW, 57, LENGTH - 1])
def test_kept_rows_need_no_others(tiny_networks: dict[str, Network], mode: str, start: int) -> None:
    """Dropping the rows that replay does not keep would change an answer, to the bit; or they are
    not needed without replay either, and this shows nothing."""
    network = tiny_networks[mode]
    kept, whole = (
        run_whole(network, TOKENS, start)[0, start:],
        run_whole(network, TOKENS)[0, start:],
    )
    with disturbed(network, slice(0, start)):
        assert torch.equal(run_whole(network, TOKENS, start)[0, start:], kept)
        assert not torch.equal(run_whole(network, TOKENS)[0, start:], whole)


def test_kept_rows_see_each_other(tiny_networks: dict[str, Network]) -> None:
    """The first kept position is hidden as well, or a window is cut where nothing is hidden."""
    network, start = tiny_networks["fp32"], 40
    kept = run_whole(network, TOKENS, start)[0]
    with disturbed(network, slice(start, start + 1)):
        changed = (run_whole(network, TOKENS, start)[0] != kept).any(-1)
    assert not changed[:start].any()
    assert changed[start : start + WINDOW].all()
