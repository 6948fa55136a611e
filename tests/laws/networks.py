"""What the numerical tests run: networks and oracles built from one checkpoint, and recordings.

Everything goes through the project's own loader and `build_network`; nothing here computes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepinfer.checkpoint.load import Checkpoint, open_checkpoint
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.batch import FreshStore, GrowingStore, make_batch
from deepinfer.model.draft import DraftStore, Proposal, draft_batch
from deepinfer.model.layer import Flow
from deepinfer.model.network import Hidden, Network
from deepinfer.oracle.model import Oracle
from deepinfer.tokenizer.compress import build_token_map
from deepinfer.worker.build import build_network
from tests.golden.goldens import load_golden

DTYPES = {"fp32": torch.float32, "fp32_noqdq": torch.float32, "bf16": torch.bfloat16}


def without_round_trips(kernels: KernelSet) -> KernelSet:
    """The caches keep what they are given: no rounding decides anything any more."""

    def keep(x: Tensor) -> Tensor:
        return x

    return replace(kernels, round_trip_window=keep, round_trip_entry=keep, round_trip_index=keep)


def kernels_of(mode: str) -> KernelSet:
    """The ops of a mode of the goldens: fp32, fp32_noqdq or bf16."""
    kernels = load_kernels()
    return without_round_trips(kernels) if mode == "fp32_noqdq" else kernels


@dataclass(frozen=True)
class Source:
    """One checkpoint, open: it makes networks and oracles. `config` may be another than its own."""

    config: ModelConfig
    checkpoint: Checkpoint
    token_map: list[int]

    def network(self, mode: str = "fp32", kernels: KernelSet | None = None) -> Network:
        kernels = kernels or kernels_of(mode)
        return build_network(
            self.config, self.checkpoint, self.token_map, kernels, dtype=DTYPES[mode]
        )

    def oracle(self, mode: str = "fp32") -> Oracle:
        tensors = {name: self.checkpoint.raw(name) for name in self.checkpoint.index.specs}
        return Oracle(
            self.config,
            tensors,
            self.token_map,
            dtype=DTYPES[mode],
            cache_round_trip=mode != "fp32_noqdq",
        )


def open_source(folder: Path) -> Source:
    """The checkpoint of a folder, with the token map of its tokenizer."""
    config = read_model_config(folder)
    token_map = build_token_map(folder / "tokenizer.json").tolist()
    return Source(config, open_checkpoint(folder, config), token_map)


@cache
def golden_source(name: str) -> Source:
    return open_source(load_golden(name).config_dir)


@cache
def golden_network(name: str, mode: str = "fp32") -> Network:
    return golden_source(name).network(mode)


class Call(NamedTuple):
    """One call of a module."""

    inputs: tuple[Any, ...]
    output: Any


@contextmanager
def recording(network: nn.Module) -> Iterator[dict[str, list[Call]]]:
    """Record every call of every submodule, by its name, while the context lasts."""
    calls: dict[str, list[Call]] = {}

    def recorder(name: str) -> Callable[..., None]:
        def record(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            calls.setdefault(name, []).append(Call(inputs, output))

        return record

    hooks = [
        module.register_forward_hook(recorder(name))
        for name, module in network.named_modules()
        if name
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


class KeepingStore(FreshStore):
    """A FreshStore that remembers the entries and index keys of each layer."""

    def __init__(self) -> None:
        self.kept_entries: dict[int, Tensor] = {}
        self.kept_keys: dict[int, Tensor] = {}

    def entries(self, layer_id: int, entries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        self.kept_entries[layer_id], self.kept_keys[layer_id] = entries, keys
        return entries, keys


@torch.no_grad()
def run_whole(network: Network, token_ids: Tensor, decoder_start: int = 0) -> Tensor:
    """int64 [B, S] -> logits [B, S, vocab]. decoder_start: of bounded replay."""
    batch = make_batch(network.setup.config, token_ids, decoder_start=decoder_start)
    return network.head(network.run(batch, FreshStore()).final).unflatten(0, token_ids.shape)


@torch.no_grad()
def run_in_chunks(network: Network, token_ids: Tensor, cuts: list[int]) -> Tensor:
    """int64 [B, S] in forwards that end at each of `cuts` and at S -> logits [B, S, vocab]."""
    num_sequences, length = token_ids.shape
    store = GrowingStore(num_sequences)
    logits, start = [], 0
    for end in [*cuts, length]:
        batch = make_batch(network.setup.config, token_ids[:, :end], start)
        final = network.run(batch, store).final
        logits.append(network.head(final).unflatten(0, (num_sequences, -1)))
        start = end
    return torch.cat(logits, 1)


def every(step: int, length: int) -> list[int]:
    """The cuts of chunks of `step` tokens: every(3, 8) -> [3, 6]."""
    return list(range(step, length, step))


@torch.no_grad()
def run_greedily(
    network: Network, prompt: list[int], num_tokens: int, decoder_start: int = 0
) -> list[int]:
    """Generate as an engine does: the prompt in one forward, then one token a forward."""
    store, tokens, start = GrowingStore(1), list(prompt), 0
    while len(tokens) < len(prompt) + num_tokens:
        batch = make_batch(network.setup.config, torch.tensor([tokens]), start, decoder_start)
        final = network.run(batch, store).final
        start = len(tokens)
        tokens.append(int(network.head(final[-1:]).argmax()))
    return tokens[len(prompt) :]


class Seen(NamedTuple):
    """One forward over one sequence, with all that it computed on the way."""

    hidden: Hidden
    store: KeepingStore
    calls: dict[str, list[Call]]

    def output(self, module: str) -> Any:
        """What a module that was called once returned."""
        (call,) = self.calls[module]
        return call.output

    def flow(self, layer: str) -> Flow:
        """What a layer handed on, with all that it wrote in the streams."""
        return self.output(layer).settled(load_kernels())

    def input(self, module: str) -> Any:
        (call,) = self.calls[module]
        return call.inputs[0]


@torch.no_grad()
def run_recorded(network: Network, token_ids: Tensor) -> Seen:
    """int64 [S] -> its forward."""
    store = KeepingStore()
    with recording(network) as calls:
        hidden = network.run(make_batch(network.setup.config, token_ids[None]), store)
    return Seen(hidden, store, calls)


class Drafted(NamedTuple):
    """Drafts at A anchors of one sequence. Rows of blocks come as [A, block, ...]."""

    main_x: Tensor
    stages: list[Tensor]
    tensors: dict[str, Tensor]
    proposal: Proposal


@torch.no_grad()
def run_draft(
    network: Network,
    features: Tensor,
    anchors: Tensor,
    golden_ids: Tensor,
    pick: Callable[[Tensor, int], Tensor],
    size: int | None = None,
) -> Drafted:
    """features [S, taps * D]; anchors and golden_ids int64 [A]; pick as of `Draft.propose`; size as
    of `draft_batch`."""
    config, first_rows = network.setup.config, torch.zeros_like(anchors)
    batch = draft_batch(config, golden_ids, anchors, first_rows, len(features), size)
    with recording(network) as calls:
        main_kv = network.draft.main_kv(features, torch.arange(len(features)))
        hidden = network.draft.run(network.embed(batch.token_ids), batch, DraftStore(main_kv))
        hidden = hidden.unflatten(0, (len(anchors), -1))
        proposal = network.draft.propose(hidden, golden_ids, network.head, pick)
    transitions = [call.output for call in calls["draft.markov_head.head"]]
    flows = [calls[f"draft.blocks.{i}"][0].output for i in range(len(network.draft.blocks))]
    stages = [flow.settled(network.kernels).streams for flow in flows]
    return Drafted(
        main_x=calls["draft.main_norm"][0].output,
        stages=[streams.unflatten(0, hidden.shape[:2]) for streams in stages],
        tensors={
            "raw": hidden,
            "normalized": calls["draft.norm"][0].output,
            "base_logits": calls["head"][0].output,
            "transition_logits": torch.stack(transitions, 1),
            "confidence_raw": proposal.confidence,
        },
        proposal=proposal,
    )
