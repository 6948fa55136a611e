"""A request of n continuations -> n sequences for the scheduler, each with its own state.

Knows parameters and token ids. Changes nothing: what it makes is nobody's yet.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from deepinfer.config.replay import decoder_start
from deepinfer.engine.continuation import Continuation, begin, prepare
from deepinfer.engine.steering import Steering, thinking_limit
from deepinfer.sampling_params import NUM_SEEDS, SamplingParams
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.request import Request


class SpecialTokens(NamedTuple):
    """eos_ids: the model's end tokens. thinking_ids: the tokens around its thoughts, None without
    any."""

    eos_ids: frozenset[int]
    thinking_ids: tuple[int, int] | None = None


def begin_request(
    request_id: str,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    seed: int | None,
    has_grammar: bool,
    special: SpecialTokens,
    keep_tokens: int | None,
    is_rejection: bool,
) -> Iterator[tuple[Request, Continuation]]:
    """The sequences of a request, named (request_id, choice), in order.

    seed: stands for the params' own; None draws one where they have none. keep_tokens: as
    of `Engine`. is_rejection: how drafts are accepted.
    """
    seed = params.seed_or_random() if seed is None else seed % NUM_SEEDS
    limits = Limits(
        max_tokens=params.max_tokens,
        # With a grammar an end token comes only where the text may end: it always counts.
        min_tokens=0 if has_grammar else params.min_tokens,
        stop_token_ids=frozenset(params.stop_token_ids or ()),
        ignore_eos=params.ignore_eos,
        eos_ids=special.eos_ids,
    )
    # Each row of a prompt whose log-probabilities are wanted is one that somebody looks at.
    is_scored = params.num_prompt_logprobs >= 0
    seen_from = 0 if is_scored else decoder_start(len(prompt_ids), keep_tokens)
    for choice in range(params.n):
        # The prompt's own log-probabilities are the same for all continuations.
        num_top = params.num_prompt_logprobs if choice == 0 else -1
        score_top = num_top if num_top >= 0 else None
        prepared = prepare(
            params, seed=seed, choice=choice, eos_ids=special.eos_ids, is_rejection=is_rejection
        )
        limit = thinking_limit(prompt_ids, params.max_thinking_tokens, special.thinking_ids)
        yield (
            Request(
                (request_id, choice),
                prompt_ids,
                limits,
                score_top,
                seen_from,
                cache_salt=params.cache_salt,
            ),
            begin(prepared, prompt_ids, (), Steering(thinking=limit)),
        )
