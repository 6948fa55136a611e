"""Networks with the Triton kernels, as tests of whole forwards want them."""

from deepinfer.kernels.backends import load_kernels
from deepinfer.model.network import Network
from deepinfer.worker.build import build_network
from deepinfer.worker.engram_memory import hold_tables
from tests.laws.networks import Source


def triton_network(source: Source, device: str, *, is_invariant: bool = False) -> Network:
    """Of a checkpoint, Engram's tables on the device too."""
    network = build_network(
        source.config,
        source.checkpoint,
        source.token_map,
        load_kernels("triton", is_invariant=is_invariant),
        device=device,
    )
    hold_tables(network, "device", device)
    return network
