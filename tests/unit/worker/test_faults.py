"""What a device does wrong, said so that somebody can act on it."""

import pytest
import torch

from deepinfer.errors import DeviceError
from deepinfer.worker.faults import named_faults
from deepinfer.worker.lane import Lane, LaneError, Pending


def test_no_memory_left() -> None:
    """A user reads thirty lines of an allocator's state, and not which option to lower."""
    with (
        pytest.raises(DeviceError, match="no memory left: tried 2 GiB") as found,
        named_faults("x"),
    ):
        raise torch.OutOfMemoryError("tried 2 GiB\nmore\nlines")
    assert found.value.where == "x"
    assert "\n" not in found.value.what
    for option in ("gpu_memory_utilization", "kv_cache_bytes", "max_num_seqs"):
        assert option in found.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be",
        "CUDA error: unspecified launch failure",
        "CUDA driver error: device not ready",
    ],
)
def test_lost_device(text: str) -> None:
    """A GPU that fell off its bus looks like a bug of ours."""
    with pytest.raises(DeviceError, match="the device failed: CUDA") as found, named_faults("x"):
        raise RuntimeError(text)
    assert "start the engine anew" in found.value.hint


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), KeyError("a"), ValueError("b")])
def test_mistakes_stay_mistakes(error: Exception) -> None:
    """Our own mistake is blamed on the device."""
    with pytest.raises(type(error)) as found, named_faults("x"):
        raise error
    assert found.value is error


class _Broken:
    device = "cpu"

    def start_sample(self, plan: object) -> object:
        raise RuntimeError("CUDA error: unspecified launch failure")


@pytest.mark.parametrize("is_threaded", [False, True])
def test_lane_fails_once_and_never_hangs(is_threaded: bool) -> None:
    """The call after a lost device waits for ever, or runs on what the device lost."""
    lane = Lane(_Broken(), is_threaded=is_threaded)  # type: ignore[arg-type]
    try:

        def ask() -> Pending:
            return lane.sample(None)  # type: ignore[arg-type]

        with pytest.raises(DeviceError):
            ask().result()
        with pytest.raises(LaneError):
            ask().result()
    finally:
        lane.close()
