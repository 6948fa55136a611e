"""`SamplingParams`: how the tokens of one request are chosen. Refuses what it cannot honour."""

import math
import secrets
from dataclasses import dataclass

from deepinfer.errors import RequestError

# Below this, dividing logits by the temperature would overflow before it changed any choice.
GREEDY_BELOW = 1e-5
NUM_SEEDS = 2**64
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How to choose tokens. The order is: temperature, top_k, top_p, draw.

    temperature: 0 chooses the likeliest token; higher is more varied.
    top_k: only the k likeliest tokens take part; -1 or 0 is all of them.
    top_p: of those, only the likeliest whose probabilities reach p take part; at least one does.
    seed: the same seed gives the same tokens; None draws one.
    max_tokens: most tokens to generate.
    ignore_eos: do not stop at the end-of-sequence token.
    Raises RequestError naming the field.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    max_tokens: int = 16
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, math.inf, "a finite number of at least 0")
        _number("top_p", self.top_p, 0.0, 1.0, "a number above 0 and at most 1", above=True)
        _whole("top_k", self.top_k, -1, 2**31 - 1, "-1 or 0 for all tokens, else a whole number")
        _whole("max_tokens", self.max_tokens, 1, MAX_TOKENS, "a whole number of at least 1")
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), NUM_SEEDS - 1, "a whole number of 64 bits, or none")
        if not isinstance(self.ignore_eos, bool):
            raise _refused("ignore_eos", self.ignore_eos, "true or false")

    @property
    def greedy(self) -> bool:
        """No draw: the likeliest token, the lowest id on a tie."""
        return self.temperature < GREEDY_BELOW

    def seed_or_random(self) -> int:
        """The seed in [0, 2**64); a fresh one if none was given."""
        return secrets.randbelow(NUM_SEEDS) if self.seed is None else self.seed % NUM_SEEDS


def _number(
    field: str, value: object, low: float, high: float, expected: str, *, above: bool = False
) -> None:
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not (low < value if above else low <= value)
        or value > high
    ):
        raise _refused(field, value, expected)


def _whole(field: str, value: object, low: int, high: int, expected: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _refused(field, value, expected)


def _refused(field: str, value: object, expected: str) -> RequestError:
    return RequestError(f"found {value!r}", field=field, hint=f"expected {expected}")
