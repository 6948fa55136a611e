"""`Tiers`: where blocks are found that the device has no more: host memory, behind it a disk.

Knows keys and blobs, the bytes of one block. Does not know what is in a blob, or who wants it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deepinfer.cache.disk_tier import DiskTier
from deepinfer.cache.host_tier import HostTier


@dataclass
class Tiers:
    """Both, as far as there are any. blob_bytes: of every blob; another length is a miss.

    What is put goes to both. What is got from the disk goes to the host, too. num_host_hits,
    num_disk_hits: blobs that `get` gave, by where they came from, from the start.
    """

    blob_bytes: int
    host: HostTier | None = None
    disk: DiskTier | None = None
    num_host_hits: int = 0
    num_disk_hits: int = 0

    def has(self, key: bytes) -> bool:
        """`get` is likely to find it."""
        return (self.host is not None and self.host.has(key)) or (
            self.disk is not None and self.disk.has(key)
        )

    def get(self, key: bytes) -> bytes | None:
        """The blob, if it is there and whole."""
        blob = None if self.host is None else self._whole(self.host.get(key))
        if blob is not None:
            self.num_host_hits += 1
        elif self.disk is not None and (blob := self._whole(self.disk.get(key))) is not None:
            self.num_disk_hits += 1
            if self.host is not None:
                self.host.put(key, blob)
        return blob

    def _whole(self, blob: bytes | None) -> bytes | None:
        return blob if blob is not None and len(blob) == self.blob_bytes else None

    def put(self, key: bytes, blob: bytes) -> None:
        """Keep a blob. Never waits for a disk."""
        if self.host is not None:
            self.host.put(key, blob)
        if self.disk is not None:
            self.disk.put(key, blob)

    def remove(self, key: bytes) -> None:
        """Nobody shall find it any more."""
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.remove(key)

    def read_ahead(self, keys: Iterable[bytes]) -> None:
        """Somebody will soon want these: have those ready that only the disk has."""
        if self.disk is not None:
            self.disk.prefetch([key for key in keys if not (self.host and self.host.has(key))])

    def close(self) -> None:
        """Write what is still to be written."""
        if self.disk is not None:
            self.disk.close()
