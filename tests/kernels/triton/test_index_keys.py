"""The assembly that unpacks index keys, step by step: the interpreter cannot run it (spec 14.3)."""

import re

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from deepinfer.kernels.reference import quant
from deepinfer.kernels.triton import index_keys

pytestmark = pytest.mark.gpu


def greater_halves(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a & 0xFFFF, b & 0xFFFF)
    return torch.maximum(a >> 16, b >> 16) << 16 | low


def permuted(low: Tensor, high: Tensor, selector: Tensor) -> Tensor:
    """What `prmt.b32` makes."""
    result = torch.zeros_like(selector)
    for place in range(4):
        choice = selector >> (4 * place) & 15
        byte = (high << 32 | low) >> (8 * (choice & 7)) & 255
        result |= torch.where(choice > 7, (byte >> 7) * 255, byte) << (8 * place)
    return result


STEPS = {
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b & 0xFFFFFFFF,
    "max.u32": torch.maximum,
    "max.u16x2": greater_halves,
    "prmt.b32": permuted,
    "mad.lo.u32": lambda a, b, c: (a * b + c) & 0xFFFFFFFF,
}


def run(assembly: str, **given: Tensor) -> Tensor:
    """The assembly's $0, of inputs $1... given as _1...: unsigned words in int64."""
    known = {name.replace("_", "$"): value for name, value in given.items()}
    for name, operands in re.findall(r"(\w+\.[\w.]+) ([^;]+);", assembly.split("\n", 2)[2]):
        result, *sources = operands.split(", ")
        values = [known[x] if x in known else torch.tensor(int(x, 0)) for x in sources]
        known[result] = STEPS[name](*torch.broadcast_tensors(*values))
    return known["$0"]


@pytest.mark.parametrize("half", ["_UNPACK_FIRST", "_UNPACK_LAST"])
def test_assembly(half):
    """Guards what the interpreter cannot run: the steps make minus e2m1 times a power of two."""
    code = torch.arange(1 << 16)
    word = code | (code * 40503 & 0xFFFF) << 16
    shifts = 16 * (half == "_UNPACK_LAST") + 4 * torch.arange(4)
    expected = quant.fp4_value((word[:, None] >> shifts & 15).int()).float()
    for below in (0, 1, 7, 16):
        table = [
            torch.tensor(getattr(index_keys, name).value - below * step)
            for name, step in (("_SMALL", 0x04040400), ("_LARGE", 0x04040404))
        ]
        made = run(
            getattr(index_keys, half).value,
            _1=word,
            _2=table[0],
            _6=table[1],
            _10=torch.tensor(0x40404040),
        )
        made = (made[:, None] >> 8 * torch.arange(4) & 255).to(torch.uint8)
        made = made.view(torch.float8_e5m2).float()
        assert torch.equal(made, -expected * 2.0 ** (3 - below))


def test_assembly_of_the_largest_scale(generator):
    """Guards it likewise: a wrong largest scale changes what all others are measured by."""
    scales = torch.randint(0, 256, (4096, 4), generator=generator)
    word = (scales << 8 * torch.arange(4)).sum(1)
    assert torch.equal(run(index_keys._MOST.value, _1=word), scales.amax(1))
