"""Measures that need the network itself: parts of it switched off, bounded replay switched on, and
what its drafts are worth.

Knows the modules. A change of the network holds for a `with` block; what an engine keeps from
before must not be read in it, so an engine with a prefix cache is to be emptied first.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepinfer.config.replay import least_keep_tokens
from deepinfer.engine.loading import LoadedModel
from deepinfer.entrypoints.llm import LLM
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.batch import FreshStore, make_batch
from deepinfer.model.draft import DraftStore, draft_batch
from deepinfer.model.network import Network
from deepinfer.sampling.draw import greedy


class Drafted(NamedTuple):
    """The drafts after one anchor. num_leading: how many in a row are what the model itself says.

    said, came: for each draft whose predecessors all were right, the probability that the draft
    module gave it, and whether it was right. chances: what it gave all of them.
    """

    num_leading: int
    said: list[float]
    came: list[bool]
    chances: list[float]


def loaded_model(llm: LLM) -> LoadedModel:
    """What an LLM has loaded."""
    return llm._requests.model


def network_of(llm: LLM) -> Network:
    """The network of an LLM."""
    return loaded_model(llm).engine.worker.network


@contextmanager
def engram_off(network: Network) -> Iterator[None]:
    """Engram's gates are 0: nothing is added to the streams."""

    def closed(streams: Tensor, *_: Any) -> Tensor:
        return streams

    modules = [layer.engram for layer in network.layers if layer.plan.engram_id is not None]
    with _kernels_changed(modules, lambda kernels: replace(kernels, engram_gate=closed)):
        yield


@contextmanager
def long_attention_off(network: Network) -> Iterator[None]:
    """No layer attends to entries: only the window is left."""

    def changed(kernels: KernelSet) -> KernelSet:
        def window_only(*arguments: Any) -> Tensor:
            query, sink, scale, window, window_index, *_ = arguments
            return kernels.attend(query, sink, scale, window, window_index)

        return replace(kernels, attend=window_only)

    with _kernels_changed([layer.attn for layer in network.layers], changed):
        yield


@contextmanager
def replay_on(llm: LLM) -> Iterator[int]:
    """New requests have compact replay; yields how many tokens of a prompt it keeps."""
    model = loaded_model(llm)
    worker = model.engine.worker
    kept = model.engine.keep_tokens
    # The option was not checked against the model's window: the engine may have had no replay.
    keep_tokens = max(model.options.keep_tokens, least_keep_tokens(model.config))
    model.engine.keep_tokens, worker.is_compact, was_compact = keep_tokens, True, worker.is_compact
    try:
        yield keep_tokens
    finally:
        model.engine.keep_tokens, worker.is_compact = kept, was_compact


@contextmanager
def _kernels_changed(
    modules: Sequence[Any], change: Callable[[KernelSet], KernelSet]
) -> Iterator[None]:
    kept = [module.kernels for module in modules]
    try:
        for module in modules:
            module.kernels = change(module.kernels)
        yield
    finally:
        for module, kernels in zip(modules, kept, strict=True):
            module.kernels = kernels


@torch.inference_mode()
def drafts(network: Network, token_ids: Sequence[int], start: int) -> list[Drafted]:
    """Drafts after every anchor of a sequence that leaves room for a whole block.

    start: the first anchor. The tokens from there on are to be the model's own choice: then a
    draft is right exactly if it is the token that stands there, and the number of leading ones
    is what a step with drafts would gain.
    """
    draft, config = network.draft, network.setup.config
    assert draft is not None
    device = network.embed.weight.device
    ids = torch.tensor([token_ids], device=device)
    size = config.dspark_block_size
    if ids.shape[1] - size <= start:
        return []
    anchors = torch.arange(start, ids.shape[1] - size, device=device)
    hidden = network.run(make_batch(config, ids), FreshStore())
    golden_ids = ids[0, anchors]
    rows = draft_batch(config, golden_ids, anchors, torch.zeros_like(anchors), ids.shape[1])
    main_kv = draft.main_kv(hidden.features, torch.arange(ids.shape[1], device=device))
    out = draft.run(network.embed(rows.token_ids), rows, DraftStore(main_kv))
    proposal = draft.propose(
        out.unflatten(0, (-1, size)), golden_ids, network.head, lambda logits, _: greedy(logits)
    )
    # Draft i stands at anchor + 1 + i.
    places = anchors[:, None] + torch.arange(1, size + 1, device=device)
    matches = (proposal.token_ids == ids[0, places]).tolist()
    chances = torch.sigmoid(proposal.confidence.to(torch.float32)).tolist()
    return [_judged(*one) for one in zip(matches, chances, strict=True)]


def _judged(matches: list[bool], chances: list[float]) -> Drafted:
    num_leading = next((i for i, match in enumerate(matches) if not match), len(matches))
    num_reached = min(num_leading + 1, len(matches))
    return Drafted(num_leading, chances[:num_reached], matches[:num_reached], chances)
