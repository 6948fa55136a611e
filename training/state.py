"""What outlives a run: the weights in bfloat16, in files small enough to be carried away, and where
the stage stood.

The optimizer's moments are not kept: they would be twice the weights, and they fill again within
some fifty steps, for which the rate rises anew. Rounding the weights once to bfloat16 is a
thirtieth of what the released formats will round away.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from training.weights import Master

PART_BYTES = 15 << 20
_STATE = "state.json"


@dataclass
class Progress:
    """stage: its name. spent: how much of the stage's budget is used, in seconds or steps. step:
    steps of all stages. used: rows given out, by length.
    """

    stage: str = ""
    spent: float = 0.0
    step: int = 0
    used: dict[int, int] = field(default_factory=dict)


def save_state(folder: Path, master: Master, progress: Progress) -> None:
    """Write `weights-0.pt` and so on, then state.json. An older state there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STATE).unlink(missing_ok=True)
    for old in folder.glob("weights-*.pt"):
        old.unlink()
    for number, part in enumerate(_parts(master.values)):
        torch.save(part, folder / f"weights-{number}.pt")
    (folder / _STATE).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")


def load_state(folder: Path, master: Master) -> Progress:
    """Fill the master weights from a folder. Raises KeyError if they are of another model."""
    loaded: dict[str, Tensor] = {}
    for path in sorted(folder.glob("weights-*.pt")):
        loaded |= torch.load(path, weights_only=True)
    for name, values in master.values.items():
        values.copy_(loaded[name])
    kept = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    kept["used"] = {int(length): number for length, number in kept["used"].items()}
    return Progress(**kept)


def _parts(values: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{}]
    room = PART_BYTES
    for name, value in values.items():
        # Kept wide: sinks, hyper-connections and the router's biases, whose steps are minute.
        kept = value.cpu() if value.numel() < 1024 else value.to("cpu", torch.bfloat16)
        if kept.nbytes > room:
            parts.append({})
            room = PART_BYTES
        parts[-1][name] = kept
        room -= kept.nbytes
    return parts
