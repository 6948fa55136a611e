"""Pictures of sweeps: every point is in them, and what was published is told apart."""

import json
from pathlib import Path

import pytest

from deepinfer.bench.gpu import pictures

pytest.importorskip("matplotlib")


def record(ranks: int, requests: int, context: int, rows: int, ms: float) -> dict[str, object]:
    tokens = rows if not context else 3.25
    return {
        "gpu": "a GPU",
        "ranks": ranks,
        "requests": requests,
        "context": context,
        "rows": rows,
        "ms": ms,
        "tokens_per_s": requests * tokens / ms * 1e3,
        "tokens_per_s_of_a_request": tokens / ms * 1e3,
    }


def test_pictures(tmp_path: Path) -> None:
    """A sweep is left out, or drawn under another one's name."""
    sweeps = {
        "8": [record(8, n, 131_072, 4, 10 + n / 8) for n in (1, 64, 256)],
        "64": [record(64, n, 131_072, 4, 8 + n / 10) for n in (1, 256)],
        "4": [record(4, 1, 0, rows, rows / 30) for rows in (4096, 8192)],
        "other context": [record(8, 1, 8188, 4, 9)],
    }
    files = []
    for name, records in sweeps.items():
        files.append(tmp_path / name)
        files[-1].write_text("\n".join(map(json.dumps, records)))
    assert pictures.main([str(tmp_path / "drawn"), *map(str, files)]) == 0
    decode = (tmp_path / "drawn" / "decode_rank.svg").read_text()
    prompts = (tmp_path / "drawn" / "prompt_rank.svg").read_text()
    for ranks, text, other in ((8, decode, prompts), (64, decode, prompts), (4, prompts, decode)):
        assert f"one rank of {ranks}, a GPU, no traffic" in text
        assert f"one rank of {ranks}," not in other
    assert all("published" in text for text in (decode, prompts))


def test_nothing_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    """A call without files writes empty pictures over others."""
    assert pictures.main(["folder"]) == 2
    assert "FILE" in capsys.readouterr().out
