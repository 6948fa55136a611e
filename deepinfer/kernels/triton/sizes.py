"""Sizes of grids and tiles, for the host that launches.

Triton's functions of these names also serve its compiler, and cost a host as much as a small op of
torch each time; a step asks for thousands.
"""


def cdiv(size: int, tile: int) -> int:
    """How many tiles cover `size`, 0 or more."""
    return -(-size // tile)


def next_power_of_2(size: int) -> int:
    """The least that is not below `size`, which is 1 or more."""
    return 1 << (size - 1).bit_length()
