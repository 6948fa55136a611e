"""What an engine says of itself: the counts of all its parts, gathered.

Knows the parts' own counters. Nothing is counted here, and no answer depends on any of it.
"""

from typing import TYPE_CHECKING

from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.messages import EngineStats

if TYPE_CHECKING:
    from deepinfer.engine.engine import Engine


def engine_stats(engine: "Engine") -> EngineStats:
    """As it is now."""
    scheduler, drafts = engine.scheduler, engine.drafting.stats
    counters, totals, blocks = scheduler.counters, scheduler.totals, scheduler.memory.blocks
    prefix = scheduler.memory.prefix
    tiers = None if prefix is None else prefix.tiers
    host = None if tiers is None or tiers.host is None else tiers.host.counters()
    disk = None if tiers is None or tiers.disk is None else tiers.disk.counters()
    return EngineStats(
        running=counters.num_running,
        waiting=counters.num_waiting,
        blocks=blocks.num_blocks,
        free_blocks=counters.num_free_blocks,
        kept_blocks=blocks.num_kept,
        slots=scheduler.memory.slots.num_slots,
        free_slots=counters.num_free_slots,
        steps_total=totals.num_steps,
        prompt_tokens_total=totals.num_prompt_tokens,
        output_tokens_total=totals.num_output_tokens,
        preemptions_total=totals.num_preemptions,
        looked_up_tokens_total=0 if prefix is None else prefix.stats.num_asked,
        hit_tokens_total=0 if prefix is None else prefix.stats.num_hit,
        host_hit_tokens_total=0 if tiers is None else tiers.num_host_hits * BLOCK_TOKENS,
        disk_hit_tokens_total=0 if tiers is None else tiers.num_disk_hits * BLOCK_TOKENS,
        replayed_tokens_total=0 if prefix is None else prefix.stats.num_replayed,
        evicted_blocks_total=blocks.num_evicted,
        host_bytes=0 if host is None else host.used_bytes,
        disk_bytes=0 if disk is None else disk.used_bytes,
        disk_faults_total=0
        if disk is None
        else disk.num_corrupt + disk.num_foreign + disk.num_errors,
        disk_is_on=None if disk is None else disk.is_on,
        draft_rounds_total=drafts.num_rounds,
        drafted_total=drafts.num_drafted,
        verified_total=drafts.num_verified,
        accepted_total=drafts.num_accepted,
        accepted_by_slot=tuple(drafts.accepted_by_slot.tolist()),
    )
