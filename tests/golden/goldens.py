"""The golden checkpoints and what an independent implementation computes from them.

`load_golden("a")` gives the folder of a tiny checkpoint in the released layout, the expected
tensors by name and the expected figures. They judge every numerical test: read only.
`copy_goldens.py` says which of the tensors are kept and where they come from.
"""

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

FOLDER = Path(__file__).parent
PROMPTS = {
    "a": ("p1", "p2", "p3", "p17", "p40", "p200"),
    "b": ("p1", "p2", "p3", "p17", "p40", "p200", "p400"),
}


@dataclass(frozen=True)
class Golden:
    """One checkpoint with its expected results, shared by all tests: do not write to them."""

    name: str
    config_dir: Path  # config.json, tokenizer and shards
    tensors: Mapping[str, Tensor]  # expected values, e.g. "p40/logits.fp32"
    info: Mapping[str, Any]  # expected.json: prompts, tokenization, greedy, draft, engram, ...

    def tolerance(self, prompt: str) -> Tensor:
        """How far fp32 logits of `prompt` may be off at each position, [S, 1].

        Positions near a tie of some rounding or selection may legally go the other way; `noise`
        measured how much that moves their logits.
        """
        return (3 * self.tensors[f"{prompt}/noise.fp32"]).clamp(min=1e-4)[:, None]


@cache
def load_golden(name: str) -> Golden:
    """Return golden "a" (small) or "b" (long window, YaRN, clamping, Reindex layers)."""
    packed = (FOLDER / name / "expected.safetensors.xz").read_bytes()
    return Golden(
        name=name,
        config_dir=FOLDER / name / "model",
        tensors=safetensors.torch.load(lzma.decompress(packed)),
        info=json.loads((FOLDER / name / "expected.json").read_text()),
    )


@cache
def load_released_tensors(name: str) -> Mapping[str, Tensor]:
    """Return the raw tensors of a golden's checkpoint, by released name, as stored."""
    tensors: dict[str, Tensor] = {}
    for shard in sorted((FOLDER / name / "model").glob("*.safetensors")):
        with safetensors.torch.safe_open(shard, framework="pt") as file:
            tensors.update({key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    return tensors


def assert_close(actual: Tensor, expected: Tensor, tolerance: Tensor | float) -> None:
    """Fail with the worst position unless |actual - expected| <= tolerance everywhere."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} != {tuple(expected.shape)}"
    excess = (actual.float() - expected.float()).abs() - tolerance
    excess = torch.where(actual == expected, -torch.inf, excess)  # equal infinities are equal
    if excess.numel() == 0 or bool((excess <= 0).all()):
        return
    flat = excess.nan_to_num(torch.inf).argmax()  # a NaN is the worst of all
    worst = tuple(int(index) for index in torch.unravel_index(flat, excess.shape))
    wrong = int((~(excess <= 0)).sum())
    raise AssertionError(
        f"{wrong} of {excess.numel()} values out of tolerance, the worst at {worst}: "
        f"{float(actual[worst])} instead of {float(expected[worst])}"
    )
