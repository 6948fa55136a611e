"""Keys and blobs for tests of the tiers: a blob follows from its key, so a wrong one is seen."""

import hashlib
from collections.abc import Iterable

from deepinfer.cache.disk_folder import scan
from deepinfer.cache.disk_tier import DiskTier

IDENTITY = b"model a, packed"
BLOB_BYTES = 1000


def key_of(number: int) -> bytes:
    """32 bytes, as a hash gives them."""
    return hashlib.sha256(number.to_bytes(8, "little")).digest()


def keys_of(numbers: Iterable[int]) -> list[bytes]:
    return [key_of(number) for number in numbers]


def blob_of(key: bytes, num_bytes: int = BLOB_BYTES) -> bytes:
    """What belongs to a key, and to no other."""
    return hashlib.shake_128(key).digest(num_bytes)


def is_right(key: bytes, blob: bytes | None) -> bool:
    """Whether this is the key's blob, of any length."""
    return blob is not None and blob == blob_of(key, len(blob))


def store(tier: DiskTier, keys: list[bytes]) -> None:
    """Put the keys' blobs and see them written."""
    for key in keys:
        tier.put(key, blob_of(key))
    assert tier.flush(10.0)


def temporaries(folder: object) -> list[str]:
    return [file.path for file in scan(str(folder)) if file.is_temporary]


def stored_bytes(folder: object) -> int:
    return sum(file.num_bytes for file in scan(str(folder)) if not file.is_temporary)
