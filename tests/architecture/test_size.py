"""How much the repository weighs."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models" / "demo"


def test_tracked_files_stay_small():
    """A clone becomes a burden: weights or recordings were added without anybody noticing."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert sum(file.stat().st_size for file in files if file.is_file()) < 50_000_000


def test_the_demo_model_stays_small():
    """The demo model outgrows its room, or a shard what a repository's host takes."""
    sizes = {file.name: file.stat().st_size for file in DEMO.iterdir()}
    assert sum(sizes.values()) <= 20_000_000
    shards = {name: size for name, size in sizes.items() if name.endswith(".safetensors")}
    assert shards
    assert max(shards.values()) <= 8_000_000
