"""The prefix cache over many steps: nobody gets another text's block, and no block is lost.

With trees of prompts, talks that go on, evictions, a tier, preemption, aborts, drafts and
interrupts; step after step, or each planned before the tokens of the one before are known.
"""

from collections import Counter

import pytest

from deepinfer.config.words import PrefixReplay
from tests.sim.prefix_world import PrefixWorld


def run_worlds(
    replay: PrefixReplay, num_worlds: int, num_steps: int, check_every: int
) -> Counter[str]:
    """What happened in random worlds, half of them with a tier, half with salts."""
    counts: Counter[str] = Counter()
    for seed in range(num_worlds):
        world = PrefixWorld(seed, replay, ahead=(0.0, 1.0, 0.5)[seed // 4 % 3])
        world.run(num_steps, check_every)
        counts += world.counts + Counter({f"ended: {why}": n for why, n in world.ends.items()})
        counts["hit tokens"] += world.prefix.stats.num_hit
        counts["replayed tokens"] += world.prefix.stats.num_replayed
        counts["evicted"] += world.blocks.num_evicted
        counts["duplicates"] += world.blocks.num_duplicates
        counts["preempted"] += world.scheduler.counters.num_preemptions
        counts["interrupted"] += world.loop.num_lost
        if world.tier is not None:
            counts["hits of the tier"] += world.tier.counters().num_hits
            counts["lost by the tier"] += world.tier.counters().num_misses
    return counts


MET = (
    "hits",
    "hits of one that was preempted",
    "evicted",
    "duplicates",
    "preempted",
    "preempted while drawn",
    "interrupted",
    "accepted",
    "aborted while it ran",
    "ended: error",
    "hits of the tier",
    "lost by the tier",
)


@pytest.mark.parametrize("replay", ["exact", "bounded"])
def test_five_thousand_steps(replay: PrefixReplay) -> None:
    """B08, B11, B12, A13: see `test_two_hundred_thousand_steps`."""
    counts = run_worlds(replay, num_worlds=24, num_steps=210, check_every=10)
    assert not [name for name in MET if not counts[name]]
    assert (counts["hits behind a turn"] > 0) == (replay == "bounded")


@pytest.mark.slow
@pytest.mark.parametrize("replay", ["exact", "bounded"])
def test_two_hundred_thousand_steps(replay: PrefixReplay) -> None:
    """A hit gives a block of another text, or of one that was computed in another way or under
    another salt; a row is written where others read (B12); tokens that did not stay get a key
    (B11); a look-up evicts what it has found (B08); a block has an owner too many or too few, or
    is neither owned, kept nor empty (A13)."""
    counts = run_worlds(replay, num_worlds=48, num_steps=4200, check_every=50)
    assert min(counts[name] for name in MET) >= 100
    assert (counts["hits behind a turn"] >= 50) == (replay == "bounded")
