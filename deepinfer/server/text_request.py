"""A request of Completions -> prompts and parameters.

Knows the protocol's fields. Does not know HTTP, nor how tokens come about.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.front.intake import check_against, prompt_token_ids
from deepinfer.sampling_params import SamplingParams
from deepinfer.server.sampling_fields import SAME_NAMES, token_biases
from deepinfer.server.state import ServedModel
from deepinfer.so_args import read_so_args
from deepinfer.structured.output_grammar import output_grammar

MOST_PROMPTS = 1024
_MOST_LOGPROBS = 20
_DEFAULT_MAX_TOKENS = 16
_PLAIN_NAMES = ("stop", "include_stop_str_in_output", "so_args")


@dataclass(frozen=True)
class TextRequest:
    """Several prompts with the same parameters.

    prompts: (text, or None where ids were given; ids). grammar: text, of params.so_args. echo: the
    prompt is part of the answer. only_scores: nothing is to be generated; `params` ask for one
    token all the same, which is dropped. num_logprobs: likeliest tokens to show with each token,
    None for no log-probabilities.
    """

    model: str
    prompts: list[tuple[str | None, list[int]]]
    params: SamplingParams
    grammar: str | None = None
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    only_scores: bool = False
    num_logprobs: int | None = None


def read_text_request(body: Mapping[str, Any], model: ServedModel) -> TextRequest:
    """body: the fields that are honoured, null ones left out. Raises RequestError."""
    stream, echo = _flag(body, "stream"), _flag(body, "echo")
    options = body.get("stream_options")
    if options is not None and (not stream or not isinstance(options, dict)):
        raise _refused("stream_options", options, 'an object, with "stream": true')
    num_logprobs = _num_logprobs(body)
    max_tokens = body.get("max_tokens", _DEFAULT_MAX_TOKENS)
    only_scores = max_tokens == 0 and echo and not isinstance(max_tokens, bool)
    same = {name: body[name] for name in (*SAME_NAMES, *_PLAIN_NAMES) if name in body}
    params = SamplingParams(
        **same,
        max_tokens=1 if only_scores else max_tokens,
        logit_bias=token_biases(body.get("logit_bias")),
        logprobs=num_logprobs,
        prompt_logprobs=num_logprobs if echo else None,
    )
    if params.min_tokens > params.max_tokens:
        raise _refused("min_tokens", params.min_tokens, "no more than max_tokens")
    vocab_size, limit = model.config.vocab_size, model.info.max_model_len
    can_think = model.tokenizer.thinking_ids is not None
    check_against(params, vocab_size, limit, can_think=can_think)
    so_args = read_so_args(params.so_args)
    prompts = []
    for text, ids in _listed(body.get("prompt")):
        prompt_ids = prompt_token_ids(text, ids, model.tokenizer, vocab_size)
        check_room(len(prompt_ids), 1 if only_scores else max_tokens, limit)
        prompts.append((text, prompt_ids))
    return TextRequest(
        body.get("model") or model.names[0],
        prompts,
        params,
        None if so_args is None else output_grammar(so_args),
        stream,
        bool(options and options.get("include_usage")),
        echo,
        only_scores,
        num_logprobs,
    )


def check_room(num_prompt_tokens: int, max_tokens: int, limit: int) -> None:
    """Raise RequestError with both numbers where prompt and answer do not fit; nothing is cut."""
    wanted = num_prompt_tokens + max_tokens
    if wanted > limit:
        what = (
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{wanted} tokens ({num_prompt_tokens} in the prompt, {max_tokens} in the completion)."
        )
        raise RequestError(what, field="prompt", hint="shorten the prompt, or ask for less")


def _listed(prompt: Any) -> list[tuple[Any, Any]]:
    """(text, None) or (None, ids) of each prompt; a list of numbers is one prompt."""
    if isinstance(prompt, str):
        return [(prompt, None)]
    if not isinstance(prompt, list) or not prompt:
        raise _refused("prompt", prompt, "text, token ids, or a list of either")
    if not any(isinstance(one, str | list) for one in prompt):
        return [(None, prompt)]
    if len(prompt) > MOST_PROMPTS:
        raise _refused("prompt", f"{len(prompt)} prompts", f"at most {MOST_PROMPTS}")
    listed: list[tuple[Any, Any]] = []
    for one in prompt:
        if not isinstance(one, str | list):
            raise _refused("prompt", one, "text or token ids in each place")
        listed.append((one, None) if isinstance(one, str) else (None, one))
    return listed


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise _refused(name, value, "true or false")
    return value


def _num_logprobs(body: Mapping[str, Any]) -> int | None:
    value = body.get("logprobs")
    if value is None or value is False:
        return None
    if value is True:
        return 0
    if not isinstance(value, int) or not 0 <= value <= _MOST_LOGPROBS:
        raise _refused("logprobs", value, f"0 to {_MOST_LOGPROBS}")
    return value


def _refused(field: str, value: Any, expected: str) -> RequestError:
    return RequestError(f"found {str(value)[:60]!r}", field=field, hint=f"expected {expected}")
