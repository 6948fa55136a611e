"""What the released formats cost: abilities of the shipped model against those of the training
weights in bfloat16, case by case.

    python -m training.compare --state OUT --tokenizer FOLDER --model models/demo

Both run in the engine, with the same caches; only weights differ. Knows how to put weights into a
loaded model, nothing of tasks.
"""

import argparse
from pathlib import Path

import torch

from deepinfer.entrypoints.llm import LLM
from deepinfer.model.engram import ResidentTable
from deepinfer.model.network import Network
from deepinfer.tools.eval import QUICK, Plan, abilities, compared
from deepinfer.tools.eval_network import network_of
from deepinfer.tools.eval_scores import as_text
from training.export import load_master
from training.weights import Master


@torch.no_grad()
def fill(network: Network, master: Master) -> None:
    """Put the training weights into a network that was loaded from a checkpoint, unrounded but for
    the network's own dtype."""
    parameters = dict(network.named_parameters())
    for name, values in master.values.items():
        if name in parameters:
            parameters[name].copy_(values)
    for plan, layer in zip(network.plans, network.layers, strict=True):
        if plan.engram_id is not None:
            values = master.values[f"layers.{plan.layer_id}.engram.table.weight"]
            layer.engram.table = ResidentTable(values.to(network.embed.weight.dtype))


def main() -> int:
    """Ask twice, print by how many points the shipped weights are worse."""
    parser = argparse.ArgumentParser(description="What quantised weights cost in abilities.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    plan, llm = QUICK if given.quick else Plan(), LLM(given.model)
    shipped = abilities(llm, plan)
    fill(network_of(llm), load_master(given.state, given.tokenizer))
    for line in compared(abilities(llm, plan), shipped):
        print(as_text(line), flush=True)  # noqa: T201 (a program of its own)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
