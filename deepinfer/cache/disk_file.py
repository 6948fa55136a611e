"""One blob in one file: written as a whole or not at all, believed only if every bit is right.

A file is a header of 152 bytes, then the blob, then nothing:

    offset  bytes  what
         0      8  magic, "DPINFRKV"
         8      4  version of this layout, little-endian as all numbers here
        12      4  length of the key
        16     32  digest of the identity: of the model and its cache format
        48     32  key, zeros after its end
        80      8  length of the blob
        88     32  SHA-256 of the blob
       120     32  SHA-256 of the 120 bytes before

Checksums find accidents, not forgers: whoever may write in the folder may write a blob.

Why nothing is synced to the disk: a kill loses nothing of what a process has written, since the
kernel has it. Only a crash of the machine can leave a name with half of its content, or none; the
checksum finds it, and it is a miss. A cache that is now and then colder after a power cut is a
better bargain than a wait for the disk at every block.

Knows one path at a time: neither the folder around it nor what a blob means. Errors of the file
system are OSError, for the caller to judge.
"""

import fcntl
import hashlib
import os
import secrets
import struct
import time
from contextlib import suppress

_HEADER = struct.Struct("<8sII32s32sQ32s")
_MAGIC = b"DPINFRKV"
_VERSION = 1
_CHECKSUM_BYTES = 32
HEADER_BYTES = _HEADER.size + _CHECKSUM_BYTES

# A hit sets a file's time only if that is this far away: at most one write a minute for each file.
TOUCH_S = 60.0


class BadFileError(Exception):
    """A file under a blob's name that does not hold the blob. It is removed by now."""


class CorruptFileError(BadFileError):
    """Torn or damaged: lengths or checksums do not agree."""


class ForeignFileError(BadFileError):
    """Whole, but of another layout, identity or key: somebody put it here."""


def digest_of(identity: bytes) -> bytes:
    """32 bytes for an identity under this layout of files."""
    return hashlib.sha256(_MAGIC + _VERSION.to_bytes(4, "little") + identity).digest()


def write_file(path: str, digest: bytes, key: bytes, blob: bytes) -> None:
    """Put a blob at `path`. Readers see the whole file or what was there before.

    Written under a temporary name beside it, then renamed; the last of several writers wins, and
    all write the same. The temporary file is locked as long as its writer lives (see
    `remove_orphan`).
    """
    while True:
        temporary = _beside(path)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not os.fstat(fd).st_nlink:
                continue  # taken for an orphan between its birth and its lock: once more
            _write_all(fd, _header(digest, key, blob))
            _write_all(fd, blob)
            os.rename(temporary, path)
            return
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)


def read_file(path: str, digest: bytes, key: bytes) -> bytes | None:
    """The blob at `path`, touched; None if there is no file.

    Raises CorruptFileError or ForeignFileError, after the file was removed.
    """
    try:
        # Not to block: a pipe under this name would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        blob = _read_checked(fd, digest, key)
        _touch(fd)
    except BadFileError:
        _remove_bad(path, fd)
        raise
    else:
        return blob
    finally:
        os.close(fd)


def touch_file(path: str) -> bool:
    """Whether there is a file at `path`; its time is set to now, to within TOUCH_S."""
    try:
        _touch(path)
    except FileNotFoundError:
        return False
    return True


def remove_orphan(path: str) -> None:
    """Remove a temporary file unless its writer lives.

    A lock tells, not a process id: the kernel takes it from the dead, and it holds across
    containers, where ids mean nothing.
    """
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if try_lock(fd):
                os.unlink(path)
        finally:
            os.close(fd)


def try_lock(fd: int) -> bool:
    """Lock an open file against all others who do the same; False if one of them has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _header(digest: bytes, key: bytes, blob: bytes) -> bytes:
    checksum = hashlib.sha256(blob).digest()
    fields = _HEADER.pack(_MAGIC, _VERSION, len(key), digest, key, len(blob), checksum)
    return fields + hashlib.sha256(fields).digest()


def _read_checked(fd: int, digest: bytes, key: bytes) -> bytes:
    size = os.fstat(fd).st_size
    header = _read_all(fd, HEADER_BYTES)
    fields = header[: _HEADER.size]
    if hashlib.sha256(fields).digest() != header[_HEADER.size :]:
        raise CorruptFileError
    magic, version, key_len, its_digest, its_key, blob_len, checksum = _HEADER.unpack(fields)
    if (magic, version, its_digest) != (_MAGIC, _VERSION, digest) or its_key[:key_len] != key:
        raise ForeignFileError
    if size != HEADER_BYTES + blob_len:  # before memory is taken for it
        raise CorruptFileError
    blob = _read_all(fd, blob_len)
    if hashlib.sha256(blob).digest() != checksum:
        raise CorruptFileError
    return blob


def _touch(file: int | str) -> None:
    """In both directions: a clock may have been wrong, or gone back."""
    if abs(time.time() - os.stat(file).st_mtime) > TOUCH_S:
        os.utime(file)


def _remove_bad(path: str, fd: int) -> None:
    """Remove the open file, but not a good one that somebody has put into its place by now.

    Moved aside first: then nobody can replace what is looked at. While it is open, no other file
    can have its number.
    """
    aside = _beside(path)
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        if os.path.samestat(os.stat(aside), os.fstat(fd)):
            os.unlink(aside)
        else:
            os.rename(aside, path)


def _beside(path: str) -> str:
    return f"{path}.{secrets.token_hex(8)}.tmp"


def _write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read_all(fd: int, num_bytes: int) -> bytes:
    """So many bytes, or all up to the end of a file that was cut in the meantime."""
    parts = []
    while num_bytes and (part := os.read(fd, num_bytes)):
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
