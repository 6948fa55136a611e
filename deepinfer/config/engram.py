"""Engram's hash constants: bucket primes, offsets and multipliers (spec 9.3).

Pure functions of the configuration; the hash itself runs where the tokens are (kernels).
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from deepinfer.config.model import ModelConfig

# The smallest witnesses that make Miller-Rabin exact for every number below 2**64.
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


def is_prime(n: int) -> bool:
    """Exact for n < 2**64: 10007 -> True, 10005 -> False."""
    if n < 2:
        return False
    for p in _WITNESSES:
        if n % p == 0:
            return n == p
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in _WITNESSES:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        if not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True


def bucket_primes(config: "ModelConfig") -> list[list[int]]:
    """Primes of each Engram layer: [layer][n-gram size 2.. * head], the modulus of each table
    column.

    For every layer and n-gram size the search starts again at `engram_vocab_size` and takes the
    next `engram_n_heads` primes that no layer, size or head has used yet.
    """
    used: set[int] = set()
    rows = []
    for _ in config.engram_layer_ids:
        row: list[int] = []
        for _ in range(2, config.engram_max_ngram_size + 1):
            candidate, taken = config.engram_vocab_size, 0
            while taken < config.engram_n_heads:
                if candidate not in used and is_prime(candidate):
                    used.add(candidate)
                    row.append(candidate)
                    taken += 1
                candidate += 1
        rows.append(row)
    return rows


def bucket_offsets(primes: list[int]) -> list[int]:
    """First table row of each column: [3, 5, 7] -> [0, 3, 8]."""
    return [sum(primes[:i]) for i in range(len(primes))]


def multipliers(config: "ModelConfig", layer_id: int) -> list[int]:
    """The odd factor of each look-back 0..engram_max_ngram_size-1 in layer `layer_id`.

    Below (2**63 - 1) / engram_compressed_vocab_size, so that id * factor never overflows int64.
    """
    bound = (2**63 - 1) // config.engram_compressed_vocab_size // 2
    drawn = np.random.default_rng(10007 * layer_id).integers(
        0, bound, size=config.engram_max_ngram_size, dtype=np.int64
    )
    return [int(value) * 2 + 1 for value in drawn]
