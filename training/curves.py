"""Draws the logs of the training as a picture: one panel for each loss, its stages in colours.

    python -m training.curves LOG.jsonl [LOG.jsonl ...] --out curves.svg

Writes SVG by itself. Knows only that a log's lines are JSON with a step, a stage and numbers.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

_PANELS = (
    ("loss", "next token, or draft against backbone (nats)"),
    ("index_loss", "indexers against attention (nats, weighted)"),
    ("tokens_per_s", "tokens a second"),
)
_COLOURS = {"pretrain": "#2563a8", "distill": "#b45309", "draft": "#15803d"}
_WIDTH, _HEIGHT, _MARGIN = 760, 200, 56


class Point(NamedTuple):
    """One line of a log."""

    step: int
    stage: str
    value: float


def read_logs(paths: list[Path]) -> list[dict[str, Any]]:
    """Lines of training of all logs, in order; others, such as calibration, are left out."""
    lines = [json.loads(text) for path in paths for text in path.read_text("utf-8").splitlines()]
    return [line for line in lines if "step" in line]


def draw(lines: list[dict[str, Any]]) -> str:
    """An SVG with a panel for each number that the lines have."""
    panels = [
        (title, [Point(line["step"], line["stage"], line[key]) for line in lines if key in line])
        for key, title in _PANELS
    ]
    drawn = [
        f'<g transform="translate(0,{i * (_HEIGHT + 40)})">{_panel(title, points)}</g>'
        for i, (title, points) in enumerate((t, p) for t, p in panels if p)
    ]
    height = len(drawn) * (_HEIGHT + 40) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        + "".join(drawn)
        + "</svg>\n"
    )


def _panel(title: str, points: list[Point]) -> str:
    low, high = min(p.value for p in points), max(p.value for p in points)
    span, last = (high - low) or 1.0, max(p.step for p in points)

    def x(step: float) -> float:
        return _MARGIN + step / max(1, last) * (_WIDTH - 2 * _MARGIN)

    def y(value: float) -> float:
        return 24 + (high - value) / span * (_HEIGHT - 24)

    parts = [f'<text x="{_MARGIN}" y="14" font-weight="bold">{title}</text>']
    for tick in range(5):
        value = low + span * tick / 4
        parts.append(
            f'<line x1="{_MARGIN}" x2="{_WIDTH - _MARGIN}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="#ddd"/><text x="{_MARGIN - 4}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end">{value:.4g}</text>'
        )
        step = last * tick // 4
        parts.append(
            f'<text x="{x(step):.1f}" y="{_HEIGHT + 14}" text-anchor="middle">{step}</text>'
        )
    for i, (stage, colour) in enumerate(_COLOURS.items()):
        line = " ".join(f"{x(p.step):.1f},{y(p.value):.1f}" for p in points if p.stage == stage)
        if line:
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
                f'<text x="{_WIDTH - _MARGIN - 200 + 70 * i}" y="14" fill="{colour}">{stage}</text>'
            )
    return "".join(parts)


def main() -> int:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description="Loss curves as a picture.")
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text(draw(read_logs(given.logs)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
