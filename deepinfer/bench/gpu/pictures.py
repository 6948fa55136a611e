"""Pictures of `deepinfer bench rank --sweep .. --json`: throughput against speed, and against size.

    python -m deepinfer.bench.gpu.pictures FOLDER FILE...

Needs matplotlib (`pip install "deepinfer[pictures]"`), and no GPU. Each file has the lines of one
or more sweeps. What DeepSeek published of its engine, on another GPU and with all traffic between
ranks, stands beside as such.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
# Of DeepInfer on SM100: 64 ranks, 256 requests each, three drafts of which 75 % are accepted,
# context 131,072; prompts on 4 ranks, from to (its README).
_PUBLISHED_DECODE = 256, 25_000
_PUBLISHED_PROMPTS = 60_000, 90_000
_PUBLISHED = "published: DeepInfer, SM100, traffic included"


def main(arguments: Sequence[str]) -> int:
    """Draw. Raises FileNotFoundError, or ValueError for lines that are not of a sweep."""
    if len(arguments) < 2:
        sys.stdout.write(__doc__ or "")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for path in draw(folder, read_records(map(Path, arguments[1:]))):
        sys.stdout.write(f"{path}\n")
    return 0


def read_records(files: Iterable[Path]) -> list[Record]:
    """All lines of the files, in order."""
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line]


def draw(folder: Path, records: Sequence[Record]) -> list[Path]:
    """The pictures that the records have points for, as SVG: which they are."""
    import matplotlib

    matplotlib.use("svg")
    # Text stays text, and the same records give the same file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "deepinfer"})
    decode = [one for one in records if one["context"]]
    prompts = [one for one in records if not one["context"]]
    drawn = []
    if decode:
        drawn.append(_decode(folder / "decode_rank.svg", decode))
    if prompts:
        drawn.append(_prompts(folder / "prompt_rank.svg", prompts))
    return drawn


def _decode(path: Path, records: Sequence[Record]) -> Path:
    """Tokens/s of a GPU against those of a request, and against the time of a step."""
    from matplotlib import pyplot

    longest = max(records, key=lambda one: one["requests"])["context"]
    records = [one for one in records if one["context"] == longest]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for ranks in sorted({one["ranks"] for one in records}):
        line = sorted(
            (one for one in records if one["ranks"] == ranks), key=lambda one: one["requests"]
        )
        total = [one["tokens_per_s"] for one in line]
        label = f"one rank of {ranks}, {line[0]['gpu']}, no traffic"
        left.plot([one["tokens_per_s_of_a_request"] for one in line], total, "o-", label=label)
        right.plot([one["ms"] for one in line], total, "o-", label=label)
        for one in line:
            at = one["tokens_per_s_of_a_request"], one["tokens_per_s"]
            left.annotate(str(one["requests"]), at, (3, 4), textcoords="offset points", fontsize=8)
    requests, published = _PUBLISHED_DECODE
    left.plot([published / requests], [published], "k^", label=_PUBLISHED)
    left.set_xlabel("tokens/s of a request (beside the points: requests)")
    right.set_xlabel("milliseconds a step")
    for axes in (left, right):
        axes.set_ylabel("tokens/s of a GPU")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.suptitle(f"Decode, context {longest + records[0]['rows']:,}")
    return _save(figure, path)


def _prompts(path: Path, records: Sequence[Record]) -> Path:
    """Tokens/s of a GPU against the rows of a step."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.5, 4.5))
    for ranks in sorted({one["ranks"] for one in records}):
        line = sorted(
            (one for one in records if one["ranks"] == ranks), key=lambda one: one["rows"]
        )
        rows, total = [one["rows"] for one in line], [one["tokens_per_s"] for one in line]
        axes.plot(rows, total, "o-", label=f"one rank of {ranks}, {line[0]['gpu']}, no traffic")
    axes.axhspan(*_PUBLISHED_PROMPTS, color="k", alpha=0.1, label=_PUBLISHED)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("rows a step")
    axes.set_ylabel("tokens/s of a GPU")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.suptitle("Prompts from the start")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    return path


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
