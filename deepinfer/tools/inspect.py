"""Prints what a checkpoint folder holds against what its config.json asks for.

Reports an incomplete or damaged checkpoint instead of stopping at its first fault. Reads headers
only: no weight is touched and torch is never imported.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deepinfer.checkpoint.compare import Comparison, compare
from deepinfer.checkpoint.index import Survey, survey
from deepinfer.checkpoint.inventory import inventory
from deepinfer.config.layers import plan_layers
from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.errors import CheckpointError, ConfigError

# Part of the model by tensor name; the first that matches.
GROUPS = (
    ("draft module", r"mtp\..*"),
    ("vision", r"(vision|aligner)\..*|image_.*"),
    ("Engram", r".*\.engram\..*"),
    ("routed experts", r".*\.ffn\.experts\..*"),
    ("shared experts", r".*\.ffn\.shared_experts\..*"),
    ("router", r".*\.ffn\.gate\..*"),
    ("hyper-connections", r".*\.hc_.*"),
    ("compressor and indexer", r".*\.attn\.(compressor|indexer)\..*"),
    ("attention", r".*\.attn\..*"),
    ("norms", r"(.*\.(attn|ffn)_)?norm\.weight"),
    ("embedding and head", r"(embed|head)\.weight"),
)
SHOWN = 20  # names of a long list


@dataclass(frozen=True, slots=True)
class Share:
    """Tensors and bytes of one group, storage type or file."""

    name: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything `inspect` found. `expected` and `found` have one Share for each of GROUPS."""

    folder: Path
    config: ModelConfig
    expected: tuple[Share, ...]
    found: tuple[Share, ...]
    dtypes: tuple[Share, ...]
    files: tuple[Share, ...]
    seen: Survey
    comparison: Comparison

    @property
    def problems(self) -> Sequence[CheckpointError]:
        """Why the engine would not load this. While files are at fault, they explain the rest."""
        return self.seen.problems or self.comparison.problems

    def lines(self) -> Iterator[str]:
        """The report as plain text."""
        yield from _config_lines(self.folder, self.config)
        yield ""
        yield from _group_lines(self.expected, self.found)
        yield from _share_lines("storage type", self.dtypes)
        yield from _share_lines("file", self.files)
        yield ""
        yield from _name_lines("missing", self.comparison.missing)
        yield from _name_lines("unknown", self.comparison.unknown)
        yield from _name_lines("different", self.comparison.mismatched)
        for warning in self.seen.warnings:
            yield f"note: {warning}"
        for problem in self.problems:
            yield f"fault: {problem}"
        yield f"verdict: {'NOT complete' if self.problems else 'complete'}"


def inspect(folder: Path) -> Report:
    """Compare a folder with its own config.json. Raises ConfigError if that alone is wrong."""
    config = read_model_config(folder)
    specs = inventory(config)
    seen = survey(folder)
    places = seen.found.values()
    return Report(
        folder=folder,
        config=config,
        expected=_by_group((name, spec.num_bytes) for name, spec in specs.items()),
        found=_by_group(
            (name, place.num_bytes) for name, place in seen.found.items() if name in specs
        ),
        dtypes=_shares((place.dtype, place.num_bytes) for place in places),
        files=_shares((place.path.name, place.num_bytes) for place in places),
        seen=seen,
        comparison=compare(seen.found, specs, folder),
    )


def main(folder: Path) -> int:
    """Print the report; 0 if the checkpoint is complete, else 1."""
    try:
        report = inspect(folder)
    except ConfigError as error:
        print(f"fault: {error}\nverdict: NOT complete")
        return 1
    print("\n".join(report.lines()))
    return 1 if report.problems else 0


def _by_group(sized: Iterable[tuple[str, int]]) -> tuple[Share, ...]:
    shares = {share.name: share for share in _shares((_group(n), size) for n, size in sized)}
    return tuple(shares.get(name, Share(name, 0, 0)) for name, _ in GROUPS)


def _group(name: str) -> str:
    return next(group for group, pattern in GROUPS if re.fullmatch(pattern, name))


def _shares(sized: Iterable[tuple[str, int]]) -> tuple[Share, ...]:
    """Sums by label, in alphabetical order."""
    tensors: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for label, num_bytes in sized:
        tensors[label] += 1
        size[label] += num_bytes
    return tuple(Share(label, tensors[label], size[label]) for label in sorted(tensors))


def _config_lines(folder: Path, c: ModelConfig) -> Iterator[str]:
    kinds = Counter(plan.kind.value for plan in plan_layers(c))
    layers = ", ".join(f"{num} {kind}" for kind, num in kinds.items())
    yield f"checkpoint: {folder}"
    yield f"layers: {c.num_hidden_layers} ({layers}), {c.num_nextn_predict_layers} draft blocks"
    yield f"sizes: hidden {c.hidden_size}, vocabulary {c.vocab_size}, heads {c.num_attention_heads}"
    yield f"experts: {c.num_experts_per_tok} of {c.n_routed_experts}, {c.n_shared_experts} shared"
    yield f"context: {c.max_position_embeddings:,}, window: {c.sliding_window}"


def _group_lines(expected: tuple[Share, ...], found: tuple[Share, ...]) -> Iterator[str]:
    total = (_total(expected), _total(found))
    yield f"{'part':24}{'tensors':>9}{'expected':>10}{'bytes':>18}{'expected':>18}"
    for want, have in (*zip(expected, found, strict=True), total):
        mark = "" if want.num_tensors == have.num_tensors else "  <-"
        yield (
            f"{want.name:24}{have.num_tensors:>9,}{want.num_tensors:>10,}"
            f"{have.num_bytes:>18,}{want.num_bytes:>18,}{mark}"
        )


def _share_lines(title: str, shares: tuple[Share, ...]) -> Iterator[str]:
    width = max([24, *(len(share.name) + 1 for share in shares)])
    yield ""
    yield f"{title:{width}}{'tensors':>9}{'bytes':>18}"
    for share in shares:
        yield f"{share.name:{width}}{share.num_tensors:>9,}{share.num_bytes:>18,}"


def _name_lines(title: str, names: tuple[str, ...]) -> Iterator[str]:
    yield f"{title}: {len(names)}"
    for name in names[:SHOWN]:
        yield f"  {name}"
    if len(names) > SHOWN:
        yield f"  and {len(names) - SHOWN} more"


def _total(shares: tuple[Share, ...]) -> Share:
    return Share("all", sum(s.num_tensors for s in shares), sum(s.num_bytes for s in shares))
