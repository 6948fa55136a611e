"""`SamplingParams`: how the tokens of one request are chosen, and when they end.

Knows ranges and which fields contradict each other. Does not know the model.
"""

import math
import numbers
import reprlib
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.so_args import SoArgs, read_so_args

# Below this, dividing logits by the temperature overflows before it changes any choice.
GREEDY_BELOW = 1e-5
NUM_SEEDS = 2**64
MAX_TOKENS = 2**31 - 1
MAX_TOP_LOGPROBS = 1000
MAX_STOPS = 16
MAX_CHOICES = 1024
FREE = -1  # in golden_token_ids: a token that is not forced

_ABOVE_ZERO, _FINITE = math.ulp(0.0), sys.float_info.max
_Rule = tuple[type, float, float, str]  # kind, lowest, highest, what is expected
_REAL, _WHOLE = numbers.Real, numbers.Integral  # numpy's numbers are of these kinds too
_RULES: dict[str, _Rule] = {
    "temperature": (_REAL, 0, _FINITE, "a finite number of at least 0"),
    "top_p": (_REAL, _ABOVE_ZERO, 1, "a number above 0 and at most 1"),
    "min_p": (_REAL, 0, 1, "a number from 0 to 1"),
    "presence_penalty": (_REAL, -2, 2, "a number from -2 to 2"),
    "frequency_penalty": (_REAL, -2, 2, "a number from -2 to 2"),
    "repetition_penalty": (_REAL, _ABOVE_ZERO, _FINITE, "a finite number above 0"),
    "top_k": (_WHOLE, -1, 2**31 - 1, "-1 or 0 for all tokens, else a whole number"),
    "max_tokens": (_WHOLE, 1, MAX_TOKENS, "a whole number of at least 1"),
    "min_tokens": (_WHOLE, 0, MAX_TOKENS, "a whole number of at least 0"),
    "n": (_WHOLE, 1, MAX_CHOICES, f"a whole number from 1 to {MAX_CHOICES}"),
    "top_logprobs": (_WHOLE, 0, MAX_TOP_LOGPROBS, f"0 to {MAX_TOP_LOGPROBS}"),
    "first_n_token_no_eos": (_WHOLE, 0, 1, "0 or 1; min_tokens does it for more tokens"),
}
_SEED = (_WHOLE, -(2**63), NUM_SEEDS - 1, "a whole number of 64 bits, or none")
_COUNT = (_WHOLE, 0, MAX_TOP_LOGPROBS, f"true, false, or 0 to {MAX_TOP_LOGPROBS}")
_THINKING = (_WHOLE, 0, MAX_TOKENS, "a whole number of at least 0, or none")
_TOKEN = (_WHOLE, 0, MAX_TOKENS, "token ids")
_GOLDEN = (_WHOLE, FREE, MAX_TOKENS, "token ids, or -1 for a token that is not forced")
_BIASES = "token ids mapped to numbers from -100 to 100"


class TokenBias(Mapping[int, float]):
    """{token id: what is added to its logit}; never changes, so that it can be hashed."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._biases = dict(biases)

    def __getitem__(self, token_id: int) -> float:
        return self._biases[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._biases)

    def __len__(self) -> int:
        return len(self._biases)

    def __hash__(self) -> int:
        return hash(frozenset(self._biases.items()))

    def __repr__(self) -> str:
        return repr(self._biases)


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens. The order is: repetition, presence and frequency penalty, bias,
    temperature, top_k, top_p, min_p, draw.

    temperature: 0 chooses the likeliest token; higher is more varied.
    top_k: only the k likeliest tokens take part; -1 or 0 is all of them.
    top_p: of those, only the likeliest whose probabilities reach p take part; at least one does.
    min_p: of those, only tokens at least min_p times as probable as the likeliest take part.
    presence_penalty, frequency_penalty: taken from a generated token's logit once, and each time.
    repetition_penalty: divides a logit of prompt or output, multiplies a negative one; 1 is off.
    logit_bias: {token id: number from -100 to 100}, added to the logit.
    seed: the same seed gives the same tokens; None draws one. `seq_seed` is another name for it.
    n, max_tokens: how many continuations to generate, and most tokens of each.
    min_tokens: so many tokens come before the first end token, and a stop string that they complete
        does not count. first_n_token_no_eos=1 is min_tokens=1.
    ignore_eos: do not stop at the end-of-sequence token.
    stop: generation ends where one of these strings (16 at most) is complete. The text ends before
        the string, or with it if include_stop_str_in_output.
    stop_token_ids: tokens that end the generation as the end-of-sequence token does.
    logprobs: True reports the log-probability of each generated token, a number k also those of the
        k likeliest, None and False nothing; top_logprobs=k is logprobs=k. They are the model's own,
        before penalties, bias, temperature and filters. prompt_logprobs: the same for the prompt.
    golden_token_ids: output token i is golden_token_ids[i], whatever the model says; -1 is free.
    max_thinking_tokens: where the prompt ends inside a thinking block, so many tokens of thought at
        most; then its end is forced. It says nothing of what follows.
    so_args: the output obeys a schema, a regular expression or a grammar; see `SoArgs`. min_tokens
        then only holds while the grammar has more to say than the end, and stop strings and
        stop_token_ids end the output only where it is complete.
    cache_salt: a text; prefixes are shared only between requests with the same one.
    Raises RequestError naming the field. What was a list or a mapping can no longer be changed.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    n: int = 1
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    stop_token_ids: Sequence[int] | None = None
    logprobs: bool | int | None = None
    top_logprobs: int = 0
    prompt_logprobs: bool | int | None = None
    golden_token_ids: Sequence[int] | None = None
    first_n_token_no_eos: int = 0
    max_thinking_tokens: int | None = None
    so_args: SoArgs | Mapping[str, Any] | None = None
    cache_salt: str | None = None
    seq_seed: InitVar[int | None] = None
    eos_id: InitVar[object] = None

    def __post_init__(self, seq_seed: int | None, eos_id: object) -> None:
        if eos_id is not None:
            raise _refused("eos_id", eos_id, "none: the model says it; see stop_token_ids")
        checked: dict[str, object] = {
            "seed": _seed(self.seed, seq_seed),
            "logit_bias": _bias(self.logit_bias),
            "stop": _stops(self.stop),
            "stop_token_ids": _token_ids("stop_token_ids", self.stop_token_ids, _TOKEN),
            "golden_token_ids": _token_ids("golden_token_ids", self.golden_token_ids, _GOLDEN),
            "so_args": read_so_args(self.so_args),
        }
        if self.max_thinking_tokens is not None:
            checked["max_thinking_tokens"] = _number(
                "max_thinking_tokens", self.max_thinking_tokens, _THINKING
            )
        for name, rule in _RULES.items():
            checked[name] = _number(name, getattr(self, name), rule)
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(self, name)
            if asked is not None and not isinstance(asked, bool):
                checked[name] = _number(name, asked, _COUNT)
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "true or false")
        if not isinstance(self.cache_salt, str | None):
            raise _refused("cache_salt", self.cache_salt, "a text")
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "min_tokens", max(self.min_tokens, self.first_n_token_no_eos))
        self._check_together()

    @property
    def greedy(self) -> bool:
        """No draw: the likeliest token, the lowest id on a tie."""
        return self.temperature < GREEDY_BELOW

    @property
    def num_logprobs(self) -> int:
        """Likeliest tokens to report for each generated token; -1: not even the token's own."""
        return max(_num_logprobs(self.logprobs), self.top_logprobs or -1)

    @property
    def num_prompt_logprobs(self) -> int:
        """The same for each token of the prompt."""
        return _num_logprobs(self.prompt_logprobs)

    def seed_or_random(self) -> int:
        """The seed in [0, 2**64); a fresh one if none was given."""
        return secrets.randbelow(NUM_SEEDS) if self.seed is None else self.seed % NUM_SEEDS

    def _check_together(self) -> None:
        if self.min_tokens > self.max_tokens:
            expected = f"at most max_tokens, which is {self.max_tokens}"
            raise _refused("min_tokens", self.min_tokens, expected)
        if _num_logprobs(self.logprobs) > 0 and self.top_logprobs not in (0, self.logprobs):
            expected = f"the number in logprobs, {self.logprobs}, or only one of the two"
            raise _refused("top_logprobs", self.top_logprobs, expected)
        if self.ignore_eos and self.so_args is not None:
            raise _refused("ignore_eos", True, "false beside so_args, which say where to end")


def _number(field: str, value: Any, rule: _Rule) -> Any:
    """`value` as Python's int or float; NaN is in no range, and a bool is not meant as a number."""
    kind, low, high, expected = rule
    value = value.item() if hasattr(value, "item") else value  # numpy compares in narrow types
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise _refused(field, value, expected)
    return int(value) if kind is _WHOLE else float(value)


def _seed(seed: object, seq_seed: object) -> int | None:
    if seed is not None and seq_seed is not None and seed != seq_seed:
        raise _refused("seq_seed", seq_seed, "the same as seed, or only one of the two")
    field, given = ("seq_seed", seq_seed) if seed is None else ("seed", seed)
    return None if given is None else int(_number(field, given, _SEED))


def _bias(given: Mapping[int, float] | None) -> TokenBias:
    if not isinstance(given, Mapping | None):
        raise _refused("logit_bias", given, _BIASES)
    biases = given or {}
    ids = [_number("logit_bias", key, (_WHOLE, 0, MAX_TOKENS, _BIASES)) for key in biases]
    values = [_number("logit_bias", v, (_REAL, -100, 100, _BIASES)) for v in biases.values()]
    return TokenBias(dict(zip(ids, values, strict=True)))


def _stops(given: object) -> tuple[str, ...]:
    stops = (given,) if isinstance(given, str) else () if given is None else given
    expected = f"a string or at most {MAX_STOPS} strings, none of them empty"
    if not isinstance(stops, Sequence) or len(stops) > MAX_STOPS:
        raise _refused("stop", given, expected)
    for stop in stops:
        if not isinstance(stop, str) or stop == "":
            raise _refused("stop", stop, expected)
    return tuple(stops)


def _token_ids(field: str, given: object, rule: _Rule) -> tuple[int, ...]:
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise _refused(field, given, f"a list of {rule[-1]}")
    return tuple(_number(field, token_id, rule) for token_id in given)


def _num_logprobs(asked: bool | int | None) -> int:
    """-1: nothing; 0: the token's own; k: those of the k likeliest as well."""
    return -1 if asked is None or asked is False else 0 if asked is True else asked


def _refused(field: str, value: object, expected: str) -> RequestError:
    # Python refuses to spell out a number of thousands of digits.
    is_huge = isinstance(value, int) and value.bit_length() > 128
    shown = "a number far outside" if is_huge else reprlib.repr(value)
    return RequestError(f"found {shown}", field=field, hint=f"expected {expected}")
