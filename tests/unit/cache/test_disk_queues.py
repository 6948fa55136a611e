"""What runs in the background: nothing waits for it, it stays within its bytes, and it ends."""

import threading
import time
from collections.abc import Callable

import pytest

from deepinfer.cache import disk_queues
from deepinfer.cache.disk_queues import ReadAhead, WriteBehind
from tests.unit.cache.blobs import blob_of, key_of, keys_of

A, B, C, D = keys_of(range(4))
WAIT_S = 10.0


class Disk:
    """Notes what is read and written; each call waits until it may go on."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.num_tends = 0
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()

    def write(self, key: bytes, blob: bytes) -> None:
        self.read(key)

    def read(self, key: bytes) -> bytes | None:
        self.calls.append(key)
        self.has_begun.set()
        assert self.may_go_on.wait(WAIT_S)
        return None if key == D else blob_of(key, 100)

    def tend(self) -> None:
        self.num_tends += 1


@pytest.fixture
def disk() -> Disk:
    return Disk()


def write_behind(disk: Disk, capacity_bytes: int = 250, tend_every_s: float = 1e6) -> WriteBehind:
    queue = WriteBehind(
        disk.write, disk.tend, tend_every_s=tend_every_s, capacity_bytes=capacity_bytes
    )
    queue.start()
    return queue


def comes_true(what: Callable[[], object]) -> bool:
    """Whether something becomes true within the time that we wait."""
    end_s = time.monotonic() + WAIT_S
    while not what() and time.monotonic() < end_s:
        time.sleep(0.001)
    return bool(what())


def test_a_put_waits_for_nothing(disk: Disk) -> None:
    """A slow disk stops the engine, or its queue takes all memory."""
    queue = write_behind(disk)
    assert queue.put(A, bytes(100))
    assert disk.has_begun.wait(WAIT_S)
    assert queue.put(B, bytes(100))
    assert queue.put(B, bytes(100))
    assert not queue.put(C, bytes(100))  # A counts until it is written
    assert queue.get(A) == queue.get(B) == bytes(100)
    assert queue.get(C) is None
    assert not queue.flush(0.01)
    disk.may_go_on.set()
    assert queue.flush(WAIT_S)
    assert disk.calls == [A, B]
    assert queue.get(A) is None
    assert queue.put(C, bytes(250))
    assert queue.flush(WAIT_S)
    assert not queue.put(C, bytes(251))
    queue.close()


def test_removed_before_and_while_written(disk: Disk) -> None:
    """A removed blob is written after its removal and is there again."""
    queue = write_behind(disk)
    queue.put(A, bytes(100))
    assert disk.has_begun.wait(WAIT_S)
    queue.put(B, bytes(100))
    queue.remove(B)
    assert queue.get(B) is None
    assert queue.put(C, bytes(150))  # the room of B is free again
    remover = threading.Thread(target=queue.remove, args=(A,))
    remover.start()
    remover.join(0.05)
    assert remover.is_alive()
    disk.may_go_on.set()
    remover.join(WAIT_S)
    assert not remover.is_alive()
    assert queue.flush(WAIT_S)
    assert disk.calls == [A, C]
    queue.close()


def test_closed_while_it_writes(disk: Disk) -> None:
    """A tier that turns itself off goes on writing, or whoever waits for it waits for ever."""
    queue = write_behind(disk)
    queue.put(A, bytes(100))
    assert disk.has_begun.wait(WAIT_S)
    queue.put(B, bytes(100))
    assert queue.close() == 1
    assert not queue.put(C, bytes(1))
    disk.may_go_on.set()
    assert queue.flush(WAIT_S)
    assert disk.calls == [A]
    assert queue.close() == 0


def test_it_tends(disk: Disk) -> None:
    """Old blobs go only when something is written, or only when nothing is."""
    disk.may_go_on.set()
    idle = write_behind(disk, tend_every_s=0.01)
    assert comes_true(lambda: disk.num_tends > 2)
    idle.close()
    busy_disk = Disk()
    busy_disk.may_go_on.set()
    busy = write_behind(busy_disk, tend_every_s=0.01)
    assert comes_true(lambda: busy.put(A, bytes(1)) and busy_disk.num_tends > 2)
    assert len(busy_disk.calls) > 2
    busy.close()


def test_a_mistake_in_a_thread_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours ends a background thread, and the engine waits for it for ever."""
    ended: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: ended.append(hook.exc_type))

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    queue = WriteBehind(fail, lambda: None, tend_every_s=1e6, capacity_bytes=100)
    queue.start()
    queue.put(A, bytes(1))
    queue.remove(A)
    assert queue.flush(WAIT_S)
    assert comes_true(lambda: not queue.put(B, bytes(1)))
    reader = ReadAhead(fail, capacity_bytes=100)
    reader.want([B])
    assert comes_true(lambda: len(ended) == 2)
    assert reader.take(B) is None


def test_read_ahead_in_order_within_its_bytes(disk: Disk) -> None:
    """Reading ahead takes all memory, or drops what comes first for what comes last."""
    disk.may_go_on.set()
    reader = ReadAhead(disk.read, capacity_bytes=200)
    keys = keys_of([0, 1, 2, *range(4, 14)])
    reader.want(keys)
    assert comes_true(lambda: len(disk.calls) == 2)
    for num_taken, key in enumerate(keys):
        assert comes_true(lambda n=num_taken: len(disk.calls) >= min(n + 2, len(keys)))
        assert reader.take(key) == blob_of(key, 100)
        assert reader.take(key) is None
    assert disk.calls == keys
    reader.close()


def test_taken_while_it_is_read(disk: Disk) -> None:
    """What is being read ahead is read once more; what nobody wants any more is read at all."""
    reader = ReadAhead(disk.read, capacity_bytes=200)
    reader.want([A, B, C])
    assert disk.has_begun.wait(WAIT_S)
    reader.want([A])
    assert reader.take(B) is None
    threading.Timer(0.05, disk.may_go_on.set).start()
    assert reader.take(A) == blob_of(A, 100)
    assert comes_true(lambda: disk.calls == [A, C])
    assert reader.take(C) == blob_of(C, 100)
    reader.want([D])
    assert comes_true(lambda: disk.calls == [A, C, D])
    assert reader.take(D) is None
    reader.close()
    reader.want([A])
    assert reader.take(A) is None


def test_wanted_twice_is_read_once(disk: Disk) -> None:
    """A blob that two requests want is read twice, and its bytes count for ever."""
    reader = ReadAhead(disk.read, capacity_bytes=200)
    reader.want([A])
    assert disk.has_begun.wait(WAIT_S)
    reader.want([A])
    disk.may_go_on.set()
    assert comes_true(lambda: A in reader._ready)
    reader.want([A, B])
    assert comes_true(lambda: B in reader._ready)
    assert disk.calls == [A, B]
    reader.close()


def test_what_nobody_takes_gives_way(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was aborted leaves its blobs behind, and nothing is read ahead any more."""
    disk.may_go_on.set()
    reader = ReadAhead(disk.read, capacity_bytes=100)
    reader.want([A, B])
    assert comes_true(lambda: A in reader._ready)
    reader.want([C])
    assert A in reader._ready
    monkeypatch.setattr(disk_queues, "_STALE_S", 0.0)
    reader.want([])
    assert comes_true(lambda: B in reader._ready)
    assert disk.calls == [A, B]
    assert reader.take(A) is None
    reader.close()


def test_wishes_are_bounded(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of requests that are long gone pile up."""
    monkeypatch.setattr(disk_queues, "_MAX_WANTED", 3)
    reader = ReadAhead(disk.read, capacity_bytes=10_000)
    reader.want([A])
    assert disk.has_begun.wait(WAIT_S)
    reader.want(keys_of(range(10, 20)))
    disk.may_go_on.set()
    assert comes_true(lambda: disk.calls == [A, *keys_of([17, 18, 19])])
    reader.close()


def test_the_key_of_a_blob_is_its_own() -> None:
    """The blobs of these tests are all alike, and a mix-up passes."""
    assert len({blob_of(key_of(number)) for number in range(100)}) == 100
