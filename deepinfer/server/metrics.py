"""What GET /metrics answers: the counts of engine and HTTP process, as Prometheus reads them.

Knows the names; docs/metrics.md tells what each means. Counts nothing itself, and keeps nothing:
each answer is made from the state as it is.
"""

from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from deepinfer.messages import EngineStats
from deepinfer.server.state import Histogram, HttpStats, ServerState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# (name after deepinfer_, field of EngineStats, help)
_GAUGES = (
    ("requests_running", "running", "Requests that own memory of the engine."),
    ("requests_waiting", "waiting", "Requests of the engine that own no memory yet."),
    ("blocks", "blocks", "Blocks of the device."),
    ("blocks_kept", "kept_blocks", "Blocks without an owner whose content can be found."),
    ("slots", "slots", "Slots of the device."),
    ("host_tier_bytes", "host_bytes", "What the tier in host memory holds."),
    ("disk_tier_bytes", "disk_bytes", "What the tier on disk holds."),
)
_COUNTERS = (
    ("steps", "steps_total", "Steps of the engine."),
    ("prompt_tokens", "prompt_tokens_total", "Of requests that began to run, hits included."),
    ("output_tokens", "output_tokens_total", "Tokens that the engine emitted."),
    ("preemptions", "preemptions_total", "Requests whose memory was taken."),
    ("prefix_lookup_tokens", "looked_up_tokens_total", "Tokens looked up in the prefix cache."),
    ("replayed_tokens", "replayed_tokens_total", "Hit tokens that ran again."),
    ("evicted_blocks", "evicted_blocks_total", "Kept blocks that were overwritten."),
    ("disk_faults", "disk_faults_total", "Bad files of the disk tier, and its errors."),
    ("draft_rounds", "draft_rounds_total", "Sequences in steps that drew a token for them."),
    ("drafts_drafted", "drafted_total", "Drafts that were proposed."),
    ("drafts_verified", "verified_total", "Drafts that were verified."),
    ("drafts_accepted", "accepted_total", "Drafts that stayed."),
)
_HTTP_COUNTERS = (
    ("http_prompt_tokens", "prompt_tokens", "Prompt tokens of answers."),
    ("http_cached_tokens", "cached_tokens", "Of these, found in the prefix cache."),
    ("http_output_tokens", "output_tokens", "Tokens that reached the HTTP process for answers."),
    ("http_aborted", "aborted", "Answers that ended because the client left."),
)


class _Everything(Collector):
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """All families."""
        link = self._state.link
        yield _gauge("engine_up", "1 while the engine takes requests.", link.state == "ready")
        yield _counter("engine_restarts", "Engines started because one died.", link.num_restarts)
        yield from _of_engine(self._state.engine_stats)
        yield from _of_http(self._state.stats, self._state.waiting)


def render(state: ServerState) -> bytes:
    """All metrics, in the text format whose type is CONTENT_TYPE."""
    registry = CollectorRegistry()
    registry.register(_Everything(state))
    return generate_latest(registry)


def _of_engine(stats: EngineStats) -> Iterator[Metric]:
    for name, field, text in _GAUGES:
        yield _gauge(name, text, getattr(stats, field))
    yield _gauge("blocks_used", "Blocks with an owner.", stats.blocks - stats.free_blocks)
    yield _gauge("slots_used", "Slots with an owner.", stats.slots - stats.free_slots)
    if stats.disk_is_on is not None:
        yield _gauge("disk_tier_on", "0 after it was given up for errors.", stats.disk_is_on)
    for name, field, text in _COUNTERS:
        yield _counter(name, text, getattr(stats, field))
    tiers = {"host": stats.host_hit_tokens_total, "disk": stats.disk_hit_tokens_total}
    tiers["device"] = stats.hit_tokens_total - sum(tiers.values())
    hits = CounterMetricFamily(
        "deepinfer_prefix_hit_tokens", "Prompt tokens found, by where they lay.", labels=["tier"]
    )
    for tier, count in tiers.items():
        hits.add_metric([tier], count)
    yield hits
    by_slot = CounterMetricFamily(
        "deepinfer_drafts_accepted_by_place", "By place in the block, from 1.", labels=["place"]
    )
    for place, count in enumerate(stats.accepted_by_slot, 1):
        by_slot.add_metric([str(place)], count)
    yield by_slot


def _of_http(stats: HttpStats, num_waiting: int) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        "deepinfer_http_requests", "Requests that ended.", labels=["route", "status"]
    )
    for (route, status), count in sorted(stats.requests.items()):
        requests.add_metric([route, str(status)], count)
    yield requests
    yield _gauge("http_in_flight", "Requests that have not ended.", stats.in_flight)
    yield _gauge("http_waiting", "Requests without a first token yet.", num_waiting)
    for name, field, text in _HTTP_COUNTERS:
        yield _counter(name, text, getattr(stats, field))
    yield _histogram(
        "first_token_seconds", "From a request's arrival to its first token.", stats.first_token_s
    )
    yield _histogram(
        "between_tokens_seconds", "From token to token of a choice.", stats.between_tokens_s
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"deepinfer_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"deepinfer_{name}", text, value)


def _histogram(name: str, text: str, found: Histogram) -> Metric:
    buckets, below = [], 0
    for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
        below += count
        buckets.append((bound, below))
    return HistogramMetricFamily(f"deepinfer_{name}", text, buckets=buckets, sum_value=found.total)
