"""From a state of the training to a checkpoint in the released format, and the proof that nothing
was lost on the way.

    python -m training.export --state OUT --tokenizer FOLDER --model models/demo

Knows names and files. What is not trained (the encoder of images) is drawn at random, by name.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer.checkpoint.load import open_checkpoint
from deepinfer.checkpoint.tiny import RandomWeights
from deepinfer.checkpoint.write import write_checkpoint
from deepinfer.config.model import ModelConfig, parse_model_config, read_model_config
from deepinfer.kernels.backends import load_kernels
from deepinfer.tokenizer.compress import build_token_map
from deepinfer.tokenizer.tokenizer_file import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from deepinfer.tokenizer.toy import write_toy_tokenizer
from deepinfer.worker.build import build_network, released_names
from training.attention import Mode
from training.config import demo_config, token_map_of
from training.model import run_layers
from training.stages import make_master
from training.state import load_state
from training.weights import Master, table_name

SHARD_BYTES = 7_500_000  # with its header a file stays below 8 MB
_UNTRAINED = ("vision.", "aligner.", "image_")


def released_tensors(master: Master, config: ModelConfig) -> dict[str, Tensor]:
    """Every weight of the checkpoint by its released name, float32."""
    tensors: dict[str, Tensor] = {}
    for name, values in master.values.items():
        for part, released in released_names(name, values, config.num_nextn_predict_layers):
            tensors[table_name(released)] = part
    for name in [name for name in tensors if name.endswith("gate.bias")]:
        # Images were never seen: their tokens are routed as those of text are.
        tensors[name + "_vl"] = tensors[name]
    random = RandomWeights(config, seed=0)
    return tensors | {name: random[name] for name in random if name.startswith(_UNTRAINED)}


def export(master: Master, config_json: dict[str, Any], tokenizer: Path | None, out: Path) -> None:
    """Write the checkpoint. tokenizer: the folder to copy it from; None writes the toy's."""
    config = parse_model_config(config_json)
    write_checkpoint(out, config_json, released_tensors(master, config), shard_bytes=SHARD_BYTES)
    if tokenizer is None:
        write_toy_tokenizer(out, config.vocab_size)
        return
    for file in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE):
        shutil.copyfile(tokenizer / file, out / file)


@torch.no_grad()
def compare(master: Master, folder: Path, token_ids: Tensor) -> dict[str, float]:
    """Logits of the checkpoint, by the project's loader, network and reference ops, against those
    of the training's forward over quantised weights; both float32. token_ids int64 [B, S].

    close: share of positions whose logits all agree to 1e-3; at the few others a number on the
    border between two values of a cache fell to the other side. worst: the largest difference.
    same_choice: share of positions whose most probable token is the same. unrounded_same_choice:
    the same against master weights that are not quantised: what quantisation costs.
    """
    config = read_model_config(folder)
    token_map = build_token_map(folder / TOKENIZER_FILE).tolist()
    checkpoint = open_checkpoint(folder, config)
    shipped = build_network(config, checkpoint, token_map, load_kernels(), dtype=torch.float32)
    expected = shipped(token_ids)
    found = {}
    for quantise in (True, False):
        master.refresh(quantise=quantise)
        final = run_layers(master.network, token_ids, Mode()).final
        found[quantise] = master.network.head(final).view(expected.shape)
    choice = expected.argmax(-1)
    difference = (found[True] - expected).abs().amax(-1)
    return {
        "close": float((difference < 1e-3).float().mean()),
        "worst": float(difference.max()),
        "same_choice": float((found[True].argmax(-1) == choice).float().mean()),
        "unrounded_same_choice": float((found[False].argmax(-1) == choice).float().mean()),
    }


def load_master(state: Path, tokenizer: Path | None, *, tiny: bool = False) -> Master:
    """The master weights of a state, on the CPU, in a float32 network."""
    config = parse_model_config(demo_config(tokenizer, tiny=tiny))
    token_map = token_map_of(config, tokenizer)
    master = make_master(config, token_map, "cpu", compiled=False)
    load_state(state, master)
    return master


def main() -> int:
    """Export, compare, and say what came out."""
    parser = argparse.ArgumentParser(description="Write the demo model from a training state.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="default: the toy's")
    parser.add_argument("--model", type=Path, required=True, help="folder to write")
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    master = load_master(given.state, given.tokenizer, tiny=given.tiny)
    export(master, demo_config(given.tokenizer, tiny=given.tiny), given.tokenizer, given.model)
    vocab_size = master.network.setup.config.vocab_size
    token_ids = torch.randint(3, vocab_size, (2, 256), generator=torch.Generator().manual_seed(0))
    report = compare(master, given.model, token_ids)
    report["bytes"] = sum(file.stat().st_size for file in given.model.iterdir())
    print(json.dumps(report))  # noqa: T201 (a program of its own)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
