"""When an engine that died is started again. Knows seconds; nothing of processes."""

FIRST_S = 0.5
MOST_S = 30.0
HEALTHY_S = 60.0


class Backoff:
    """Waits that double from death to death, and begin anew after a minute of health."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, healthy_s: float) -> float:
        """Seconds to wait after an engine died that had been ready for healthy_s seconds."""
        delay_s = FIRST_S if healthy_s >= HEALTHY_S else self._next_s
        self._next_s = min(2 * delay_s, MOST_S)
        return delay_s
