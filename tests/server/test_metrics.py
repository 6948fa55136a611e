"""/metrics and /live: what is counted is told, under the names that the document lists, and no
counter ever falls."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deepinfer.bench.client import Target
from deepinfer.bench.load import counts
from deepinfer.messages import EngineStats
from deepinfer.server.engine_totals import added
from deepinfer.server.live import WINDOW_S, Speed, snapshot
from deepinfer.server.metrics import render
from deepinfer.server.state import HttpStats, ServerState
from tests.architecture.tree import ROOT
from tests.server.crowd import hear, processes, questions
from tests.server.servers import serving

BUSY = EngineStats(
    running=3,
    waiting=2,
    blocks=64,
    free_blocks=24,
    kept_blocks=10,
    slots=16,
    free_slots=13,
    steps_total=100,
    prompt_tokens_total=900,
    output_tokens_total=400,
    preemptions_total=1,
    looked_up_tokens_total=800,
    hit_tokens_total=600,
    host_hit_tokens_total=150,
    disk_hit_tokens_total=50,
    replayed_tokens_total=70,
    evicted_blocks_total=4,
    host_bytes=5000,
    disk_bytes=7000,
    disk_faults_total=6,
    disk_is_on=True,
    draft_rounds_total=100,
    drafted_total=500,
    verified_total=300,
    accepted_total=180,
    accepted_by_slot=(90, 60, 30),
)


def state_of(
    living: EngineStats = EngineStats(),  # noqa: B008  (frozen)
    dead: EngineStats = EngineStats(),  # noqa: B008
    **link: Any,
) -> ServerState:
    """A server whose engine stands like that."""
    found = {"state": "ready", "num_restarts": 0, **link}
    return ServerState(
        link=cast(Any, SimpleNamespace(stats=living, past_stats=dead, **found)),
        settings=cast(Any, SimpleNamespace(served_names=("demo",))),
        admission=cast(Any, SimpleNamespace(num_waiting=4)),
        started_at=0,
        stats=HttpStats(),
    )


def told(state: ServerState) -> dict[str, float]:
    """Each sample by its name, labels included."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(render(state).decode()):
        for one in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(one.labels.items()))
            samples[one.name + (f"{{{labels}}}" if labels else "")] = one.value
    return samples


def test_the_document_lists_what_is_told() -> None:
    """A metric nobody can look up, or a line about one that is gone."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(deepinfer_\w+)", text, re.MULTILINE)
    state = state_of(BUSY)
    state.stats.requests["/v1/models", 200] += 1
    families = {
        one.name + ("_total" if one.type == "counter" else "")
        for one in text_string_to_metric_families(render(state).decode())
    }
    assert len(listed) == len(set(listed))
    assert set(listed) == families


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("deepinfer_engine_up", 1),
        ("deepinfer_requests_running", 3),
        ("deepinfer_requests_waiting", 2),
        ("deepinfer_blocks", 64),
        ("deepinfer_blocks_used", 40),
        ("deepinfer_blocks_kept", 10),
        ("deepinfer_slots", 16),
        ("deepinfer_slots_used", 3),
        ("deepinfer_host_tier_bytes", 5000),
        ("deepinfer_disk_tier_bytes", 7000),
        ("deepinfer_disk_tier_on", 1),
        ("deepinfer_prefix_hit_tokens_total{tier=device}", 400),
        ("deepinfer_prefix_hit_tokens_total{tier=host}", 150),
        ("deepinfer_prefix_hit_tokens_total{tier=disk}", 50),
        ("deepinfer_drafts_accepted_by_place_total{place=1}", 90),
        ("deepinfer_drafts_accepted_by_place_total{place=3}", 30),
        ("deepinfer_http_waiting", 4),
    ],
)
def test_each_pool_has_its_gauge(name: str, value: float) -> None:
    """O03: a gauge of memory stays at zero while the pool is half full, because the pool is of a
    kind that the gauge does not count."""
    assert told(state_of(BUSY))[name] == value


def test_every_count_of_the_engine_is_told() -> None:
    """The engine counts something new, and nobody sees it."""
    samples = told(state_of())
    changed = {
        name: told(state_of(replace(BUSY, **{name: getattr(BUSY, name) + 1})))
        for name in EngineStats.__dataclass_fields__
        if name not in ("disk_is_on", "accepted_by_slot")
    }
    before = told(state_of(BUSY))
    assert not [name for name, after in changed.items() if after == before]
    assert samples["deepinfer_blocks_used"] == 0


def test_counters_go_on_after_a_restart() -> None:
    """The engine dies, its counts begin at zero, and a graph of rates falls into a hole."""
    new = replace(EngineStats(), output_tokens_total=7, accepted_by_slot=(1,), running=1)
    before, after = told(state_of(BUSY)), told(state_of(new, BUSY, num_restarts=1))
    fallen = {
        name: (value, after.get(name))
        for name, value in before.items()
        if "_total" in name and after.get(name, 0) < value
    }
    assert not fallen
    assert after["deepinfer_output_tokens_total"] == 407
    assert after["deepinfer_drafts_accepted_by_place_total{place=1}"] == 91
    assert after["deepinfer_requests_running"] == 1
    assert after["deepinfer_engine_restarts_total"] == 1


def test_what_is_held_now_does_not_add_up() -> None:
    """A dead engine's requests run for ever."""
    found = added(BUSY, EngineStats())
    assert (found.running, found.blocks, found.host_bytes) == (0, 0, 0)
    assert found.steps_total == 100


def test_histograms_add_up() -> None:
    """Buckets are not cumulative, and every percentile drawn from them is wrong."""
    state = state_of()
    for value in (0.004, 0.02, 0.02, 1000.0):
        state.stats.first_token_s.observe(value)
    state.stats.between_tokens_s.observe(0.004, 5)
    samples = told(state)
    name = "deepinfer_first_token_seconds"
    assert samples[f"{name}_bucket{{le=0.01}}"] == 1
    assert samples[f"{name}_bucket{{le=0.025}}"] == 3
    assert samples[f"{name}_bucket{{le=300.0}}"] == 3
    assert samples[f"{name}_bucket{{le=+Inf}}"] == samples[f"{name}_count"] == 4
    assert samples[f"{name}_sum"] == pytest.approx(1000.044)
    assert samples["deepinfer_between_tokens_seconds_count"] == 5


def test_labels_cannot_break_the_format() -> None:
    """A route with a quote in it makes the whole answer unreadable."""
    state = state_of()
    state.stats.requests['/a"b\n\\', 404] += 2
    (family,) = (
        one
        for one in text_string_to_metric_families(render(state).decode())
        if one.name == "deepinfer_http_requests"
    )
    assert family.samples[0].labels == {"route": '/a"b\n\\', "status": "404"}


def test_live_tells_how_the_engine_stands() -> None:
    """The page shows another pool than the one that is full."""
    found = snapshot(state_of(BUSY, state="restarting"))
    assert found["model"] == "demo"
    assert found["state"] == "restarting"
    assert found["blocks"] == {"used": 40, "all": 64}
    assert found["slots"] == {"used": 3, "all": 16}
    assert found["hit_rate"] == 0.75
    assert found["accepted_per_step"] == 1.8


def test_live_has_no_shares_of_nothing() -> None:
    """A new server divides by zero, or claims a hit rate of 0."""
    found = snapshot(state_of())
    assert found["hit_rate"] is None
    assert found["accepted_per_step"] is None
    assert found["tokens_per_s"] == 0


def test_speed_is_of_the_last_seconds() -> None:
    """The speed is that of the whole time, and an idle server seems busy for hours."""
    speed = Speed()
    assert speed.at(0.0, 0) == 0
    assert [speed.at(float(t), 100 * t) for t in range(1, 9)] == [100] * 8
    assert [speed.at(float(t), 800) for t in range(9, 12)] == pytest.approx([200 / 3, 100 / 3, 0])
    # Nobody asked for long: what happened meanwhile is no speed of now.
    assert speed.at(1000.0, 90_000) == 0
    assert speed.at(1001.0, 90_050) == 50


def test_speed_of_two_readers() -> None:
    """Two pages ask at nearly the same time, and one of them is told nonsense."""
    speed = Speed()
    found = []
    for t in range(1, 8):
        found.append(speed.at(float(t), 100 * t))
        found.append(speed.at(t + 0.001, 100 * t))
    assert all(95 <= one <= 100 for one in found[2:])
    assert len(speed._seen) <= WINDOW_S + 2


@pytest.mark.slow
@pytest.mark.sample
@pytest.mark.skipif(sys.platform != "linux", reason="finds the engine by /proc")
def test_counters_outlive_an_engine(tiny_dir: Path) -> None:
    """O03, and the same of counters: with a real engine that is killed, a gauge keeps what the dead
    one held, or a counter falls."""
    options = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "600")
    with serving(tiny_dir, *options) as server:
        target = Target.of(server.url)

        def told_when(is_so: Callable[[dict[str, float]], bool]) -> dict[str, float]:
            end = time.monotonic() + 60
            while not is_so(found := asyncio.run(counts(target))):
                assert time.monotonic() < end, found
                time.sleep(0.2)
            return found

        tokens, used = "deepinfer_output_tokens_total", "deepinfer_slots_used"
        one, two = questions(2, seed=1)
        asyncio.run(hear(target, one))
        before = told_when(lambda found: found[tokens] == one.num_tokens and not found[used])
        os.kill(processes(server)["engine"], signal.SIGKILL)
        down = told_when(lambda found: not found["deepinfer_engine_up"])
        assert (down["deepinfer_blocks"], down[used], down[tokens]) == (0, 0, one.num_tokens)
        told_when(lambda found: found["deepinfer_engine_up"] == 1)
        asyncio.run(hear(target, two))
        both = one.num_tokens + two.num_tokens
        after = told_when(lambda found: found[tokens] == both and not found[used])
        assert after["deepinfer_engine_restarts_total"] == 1
        fallen = [name for name in before if "_total" in name and after[name] < before[name]]
        assert not fallen
        assert after["deepinfer_slots"] == before["deepinfer_slots"] > 0
