"""What GET /live answers: how the engine stands and how fast it is, for the page, once a second.

Knows counts. The speed is taken over the last seconds, from what earlier calls saw.
"""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from deepinfer.messages import EngineStats

if TYPE_CHECKING:
    from deepinfer.server.state import ServerState

WINDOW_S = 3.0
_MIN_S = 0.4  # two pages may ask within a moment; over so little time a speed says nothing


class Speed:
    """Tokens a second over the last WINDOW_S, from a count that only grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._last = 0.0

    def at(self, now_s: float, count: int) -> float:
        """The speed at a time, which must not run backwards; 0 at the first call."""
        seen = self._seen
        # One older than the window stays, so that the window is covered whole; after a pause it
        # is too old to tell anything of now.
        while len(seen) > 1 and seen[1][0] <= now_s - WINDOW_S:
            seen.popleft()
        if seen and seen[0][0] < now_s - 2 * WINDOW_S:
            seen.clear()
        if seen and now_s - seen[0][0] >= _MIN_S:
            self._last = (count - seen[0][1]) / (now_s - seen[0][0])
        elif not seen:
            self._last = 0.0
        if not seen or now_s - seen[-1][0] >= _MIN_S / 2:
            seen.append((now_s, count))
        return self._last


def snapshot(state: "ServerState") -> dict[str, Any]:
    """JSON: `model`, `state` of the engine and its `restarts`; `running` and `waiting` requests;
    `tokens_per_s`; `blocks` and `slots`, each `used` and `all`; `hit_rate`, hit tokens of those
    looked up, and `accepted_per_step`, drafts that stayed for each sequence in each step, both of
    the whole time, null before there was any."""
    stats = state.engine_stats
    return {
        "model": state.model_name,
        "state": state.link.state,
        "restarts": state.link.num_restarts,
        "running": stats.running,
        "waiting": stats.waiting,
        "tokens_per_s": state.speed.at(time.monotonic(), state.stats.output_tokens),
        "blocks": {"used": stats.blocks - stats.free_blocks, "all": stats.blocks},
        "slots": {"used": stats.slots - stats.free_slots, "all": stats.slots},
        "hit_rate": _share(stats.hit_tokens_total, stats.looked_up_tokens_total),
        "accepted_per_step": _accepted_per_step(stats),
    }


def _accepted_per_step(stats: EngineStats) -> float | None:
    return _share(stats.accepted_total, stats.draft_rounds_total) if stats.drafted_total else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
