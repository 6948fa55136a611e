"""What a request asks of sampling: the bounds of every value, and what the recipe makes of it
(spec recipe 5, 9).

The rules are a table, in the order in which they are applied, so that whoever wants to be more
lenient leaves some of them out by name. Knows no protocol's names for the fields beyond the texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from deepinfer.recipe.conversation import Version
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.fields import single
from deepinfer.recipe.tools import empty_string

MAX_STOPS = 16
_LEAST_TOP_P = single(0.95)


@dataclass(frozen=True)
class Asked:
    """Sampling values as the request has them; None: not there.

    max_tokens_bound: the most that may be asked for.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    max_tokens_bound: int = 0


class Rule(NamedTuple):
    """field: the rule's name, too. holds: takes the field's value and all that was asked."""

    field: str
    holds: Callable[[Any, Asked], bool]
    text: str


def _penalty(field: str) -> Rule:
    return Rule(
        field,
        lambda value, _: -2 <= value <= 2,
        f"Invalid {field} value, the valid range of {field} is [-2, 2]",
    )


RULES = (
    Rule("n", lambda value, _: value == 1, "Invalid n value (currently only n = 1 is supported)"),
    _penalty("presence_penalty"),
    _penalty("frequency_penalty"),
    Rule(
        "temperature",
        lambda value, _: 0 <= value <= 2,
        "Invalid temperature value, the valid range of temperature is [0, 2]",
    ),
    Rule(
        "top_p",
        lambda value, _: 0 < value <= 1,
        "Invalid top_p value, the valid range of top_p is (0, 1.0]",
    ),
    Rule(
        "top_logprobs",
        lambda _, asked: asked.logprobs,
        "Invalid top_logprobs and logprobs value, "
        "logprobs must be set to true if top_logprobs is used.",
    ),
    Rule(
        "top_logprobs",
        lambda value, _: value <= 20,
        "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].",
    ),
    Rule(
        "max_tokens",
        lambda value, asked: 1 <= value <= asked.max_tokens_bound,
        "Invalid max_tokens value, the valid range of max_tokens is [1, {bound}]",
    ),
    Rule(
        "seed",
        lambda value, _: value < 2**63,
        "Invalid seed value, the valid range of seed is [0, 2^63)",
    ),
)


def check_sampling(asked: Asked, rules: Sequence[Rule] = RULES) -> None:
    """Raise ConversionError for the first rule that a value breaks; absent values break none."""
    for rule in rules:
        value = getattr(asked, rule.field)
        if value is not None and not rule.holds(value, asked):
            text = rule.text.format(bound=asked.max_tokens_bound)
            raise ConversionError(text, field=rule.field)


def check_stops(stops: Sequence[str] | str | None) -> tuple[str, ...]:
    """The stop strings. Raises ConversionError for an empty one and for more than MAX_STOPS."""
    if isinstance(stops, str):
        if not stops:
            raise empty_string("stop")
        return (stops,)
    stops = stops or ()
    if len(stops) > MAX_STOPS:
        raise ConversionError(f"Stop string array too long: {len(stops)}", field="stop")
    for index, one in enumerate(stops):
        if not one:
            raise empty_string(f"stop[{index}]")
    return tuple(stops)


def settled_temperature(asked: float | None, *, thinking: bool) -> float:
    """The temperature to sample with: thinking is always sampled at 1."""
    return 1.0 if thinking or asked is None else asked


def settled_top_p(
    asked: float | None, version: Version, *, thinking: bool, has_tools: bool
) -> float:
    """The top_p to sample with; a number of 32 bits."""
    wanted = 1.0 if asked is None else asked
    if version == "v4":
        if not thinking:
            return wanted
        return _LEAST_TOP_P if has_tools else 1.0
    return max(wanted, _LEAST_TOP_P) if thinking else 1.0
