"""Fields that say how tokens are chosen -> SamplingParams. Alike in all APIs.

Knows the names that the APIs share. Ranges are SamplingParams'.
"""

from collections.abc import Mapping
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.recipe.request import ConversationRequest
from deepinfer.sampling_params import MAX_TOKENS, SamplingParams

# Names that mean in SamplingParams what they mean in a request.
SAME_NAMES = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("frequency_penalty", "presence_penalty", "seed", "n"),
    *("min_tokens", "ignore_eos", "stop_token_ids", "cache_salt"),
)


def sampling_params(
    given: Mapping[str, Any], request: ConversationRequest, max_tokens: int, *, official: bool
) -> SamplingParams:
    """For a conversation; what was not given is the released recipe's.

    given: fields of the request. official: temperature and top_p are the recipe's in any case.
    Raises RequestError naming the field.
    """
    inference = request.inference
    chosen = {name: given[name] for name in SAME_NAMES if name in given}
    if official or "temperature" not in given:
        chosen["temperature"] = inference.temperature
    if official or "top_p" not in given:
        chosen["top_p"] = inference.top_p
    budget = given.get("thinking_budget")
    return SamplingParams(
        **chosen,
        logit_bias=token_biases(given.get("logit_bias")),
        logprobs=(inference.top_logprobs or 0) if inference.logprobs else None,
        max_tokens=max_tokens,
        max_thinking_tokens=min(budget, MAX_TOKENS) if isinstance(budget, int) else budget,
    )


def token_biases(given: Any) -> Any:
    """{token id: bias} of what JSON has with the ids as text. Raises RequestError."""
    if not isinstance(given, dict):
        return given
    try:
        return {int(key[:20]): value for key, value in given.items()}
    except ValueError:
        hint = 'give token ids as keys: {"100": -5}'
        raise RequestError("a key is no token id", field="logit_bias", hint=hint) from None
