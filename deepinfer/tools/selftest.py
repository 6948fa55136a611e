"""`deepinfer selftest`: the network against the oracle, on this machine, in seconds.

Two implementations that share no code compute the same numbers from the same checkpoint; a broken
torch, a wrong kernel or a miscompiled library shows as a difference.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.checkpoint.load import Checkpoint, open_checkpoint
from deepinfer.checkpoint.tiny import write_tiny
from deepinfer.config.env import environment
from deepinfer.config.machine import usable_device
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.engine.machine import DEVICES, this_machine
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.batch import GrowingStore, make_batch
from deepinfer.model.draft import DraftStore, draft_batch
from deepinfer.model.network import Network
from deepinfer.oracle.model import Oracle, fp8_round_trip, mxfp4_round_trip, nvfp4_round_trip
from deepinfer.sampling.draw import greedy
from deepinfer.tokenizer.compress import build_token_map
from deepinfer.worker.build import build_network

# float32 sums in another order differ by about 1e-5 here. A rounding or a choice that falls the
# other way because of that moves logits by 0.1 and more, so near-ties are avoided: the caches'
# roundings are off.
_TOLERANCE = 1e-4
_LENGTHS = (1, 2, 3, 17, 40, 100)


class Check(NamedTuple):
    """One line of the report: `found` in words, and whether it is right."""

    name: str
    found: str
    passed: bool


class _Bench(NamedTuple):
    """The two implementations over one checkpoint."""

    config: ModelConfig
    network: Network
    oracle: Oracle
    device: str


def selftest(folder: Path | None, device: str = "auto") -> list[Check]:
    """Run all checks on the checkpoint in `folder`, or on a random toy when None."""
    if device == "auto":
        device = DEVICES[environment().accelerator]
    device = usable_device(device, this_machine(device))
    if folder is not None:
        return _run_all(folder, device)
    with tempfile.TemporaryDirectory(prefix="deepinfer-") as made:
        write_tiny(Path(made))
        return _run_all(Path(made), device)


def _run_all(folder: Path, device: str) -> list[Check]:
    config = read_model_config(folder)
    checkpoint = open_checkpoint(folder, config)
    token_map = build_token_map(folder / "tokenizer.json").tolist()
    kernels = load_kernels()
    plain = replace(
        kernels, round_trip_window=_same, round_trip_entry=_same, round_trip_index=_same
    )
    network = build_network(
        config, checkpoint, token_map, plain, dtype=torch.float32, device=device
    )
    tensors = _RawTensors(checkpoint)
    oracle = Oracle(config, tensors, token_map, cache_round_trip=False)
    bench = _Bench(config, network, oracle, device)
    with torch.inference_mode():
        checks = [_formats(kernels)]
        checks += [_logits(bench, length) for length in _LENGTHS]
        checks += [_steps(bench), _greedy(bench)]
        if network.draft is not None:
            checks.append(_draft(bench))
    return checks


def _same(x: Tensor) -> Tensor:
    return x


class _RawTensors(Mapping[str, Tensor]):
    """A checkpoint as the oracle wants it: tensors as stored, by released name."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._checkpoint:
            raise KeyError(name)
        return self._checkpoint.raw(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.index.specs)

    def __len__(self) -> int:
        return len(self._checkpoint.index.specs)


def _tokens(bench: _Bench, length: int) -> Tensor:
    """Ids [1, length], the same on every machine."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(bench.config.vocab_size, (1, length), generator=generator)
    return ids.to(bench.device)


def _compare(name: str, found: Tensor, expected: Tensor) -> Check:
    difference = float((found.cpu() - expected.cpu()).abs().max())
    passed = difference <= _TOLERANCE  # a NaN is not
    return Check(name, f"largest difference {difference:.1e}", passed)


def _formats(kernels: KernelSet) -> Check:
    """The caches' formats, to the bit."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(256, 64, generator=generator) * torch.logspace(-6, 6, 256)[:, None]
    pairs = (
        (kernels.round_trip_window, fp8_round_trip),
        (kernels.round_trip_index, mxfp4_round_trip),
        (kernels.round_trip_entry, nvfp4_round_trip),
    )
    wrong = sum(int((ours(values) != theirs(values)).sum()) for ours, theirs in pairs)
    return Check("cache formats FP8, MXFP4, NVFP4", f"{wrong} values differ", wrong == 0)


def _logits(bench: _Bench, length: int) -> Check:
    ids = _tokens(bench, length)
    expected = bench.oracle.forward(ids[0].tolist()).logits
    return _compare(f"logits of {length} tokens", bench.network(ids)[0], expected)


def _steps(bench: _Bench) -> Check:
    """A prompt in two chunks, then token by token, against the whole at once."""
    ids, store, logits = _tokens(bench, 40), GrowingStore(num_sequences=1), []
    ends = [13, 26, *range(27, 41)]
    for start, end in zip([0, *ends], ends, strict=False):
        hidden = bench.network.run(make_batch(bench.config, ids[:, :end], start), store)
        logits.append(bench.network.head(hidden.final))
    return _compare("chunks and single tokens", torch.cat(logits), bench.network(ids)[0])


def _greedy(bench: _Bench) -> Check:
    prompt, num_tokens = _tokens(bench, 5), 12
    expected = bench.oracle.greedy(prompt[0].tolist(), num_tokens)
    ids = prompt
    for _ in range(num_tokens):
        ids = torch.cat((ids, greedy(bench.network(ids)[:, -1])[:, None]), 1)
    agreed = sum(a == b for a, b in zip(ids[0, 5:].tolist(), expected, strict=True))
    return Check(
        "greedy continuation", f"{agreed} of {num_tokens} tokens agree", agreed == num_tokens
    )


def _draft(bench: _Bench) -> Check:
    """One draft block after 40 tokens."""
    ids, length, draft = _tokens(bench, 40), 40, bench.network.draft
    assert draft is not None
    hidden = bench.network.run(make_batch(bench.config, ids), GrowingStore(num_sequences=1))
    golden = greedy(bench.network.head(hidden.final[-1:]))
    anchor = torch.tensor([length], device=bench.device)
    rows = draft_batch(bench.config, golden, anchor, torch.zeros_like(anchor), length)
    main_kv = draft.main_kv(hidden.features, torch.arange(length, device=bench.device))
    out = draft.run(bench.network.embed(rows.token_ids), rows, DraftStore(main_kv))
    proposal = draft.propose(
        out[None], golden, bench.network.head, lambda logits, i: greedy(logits)
    )
    expected = bench.oracle.draft(hidden.features.cpu(), length, int(golden))
    same = proposal.token_ids[0].tolist() == expected.token_ids
    check = _compare("draft block", proposal.confidence[0], expected.confidence_raw)
    return check._replace(
        found=f"{check.found}, tokens {'agree' if same else 'differ'}", passed=check.passed and same
    )


def main(folder: Path | None, device: str) -> int:
    """Print the table of checks; exit status 1 if one failed."""
    checks = selftest(folder, device)
    for check in checks:
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.name:<34} {check.found}")
    num_failed = sum(not check.passed for check in checks)
    print(f"{len(checks)} checks, {num_failed} failed (torch {torch.__version__}, {device})")
    return 1 if num_failed else 0
