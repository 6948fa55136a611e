"""Requests as users give them -> what the engine takes. Refuses by the field's name."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.sampling_params import SamplingParams
from deepinfer.so_args import read_so_args
from deepinfer.tokenizer.tokenizer import Tokenizer

_TOKEN_FIELDS = ("logit_bias", "stop_token_ids", "golden_token_ids")


def prompt_token_ids(text: Any, token_ids: Any, tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The ids of one prompt: token_ids if they are given, else those of the text.

    token_ids: a sequence of whole numbers, an array of them too. Raises RequestError.
    """
    if token_ids is not None:
        return _checked(token_ids, vocab_size)
    if isinstance(text, str) and not text:
        raise RequestError("the prompt is empty", field="prompt", hint="give some text")
    return tokenizer.encode(text)


def _checked(token_ids: Any, vocab_size: int) -> list[int]:
    if isinstance(token_ids, str | bytes):
        raise _not_ids(f"found {type(token_ids).__name__}")
    try:
        # An array's own numbers are no ints; a list of them is made of ints.
        given = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
        checked = [_token_id(place, one, vocab_size) for place, one in enumerate(given)]
    except TypeError:
        raise _not_ids(f"found {type(token_ids).__name__}") from None
    if not checked:
        raise RequestError(
            "the prompt has no tokens", field="prompt_token_ids", hint="give at least one"
        )
    return checked


def _token_id(place: int, given: Any, vocab_size: int) -> int:
    try:
        token_id = operator.index(given)
    except TypeError:
        token_id = -1
    if isinstance(given, bool) or not 0 <= token_id < vocab_size:
        raise RequestError(
            f"{str(given)[:40]!r} at place {place} is no token id",
            field="prompt_token_ids",
            hint=f"ids are whole numbers from 0 to {vocab_size - 1}",
        )
    return token_id


def _not_ids(what: str) -> RequestError:
    return RequestError(
        f"{what}, expected a list of token ids",
        field="prompt_token_ids",
        hint="text goes into prompts",
    )


def paired(prompts: object, token_ids: object) -> tuple[list[Any], list[Any]]:
    """Text and ids of each request, None where there are none; where both are given the ids count.

    Raises RequestError.
    """
    texts = [prompts] if isinstance(prompts, str) else _listed("prompts", prompts)
    ids = _listed("prompt_token_ids", token_ids)
    if ids and all(isinstance(one, int) for one in ids):
        raise RequestError(
            "found one list of token ids",
            field="prompt_token_ids",
            hint="give a list of such lists, one for each prompt",
        )
    if texts is None and ids is None:
        raise RequestError(
            "neither prompts nor prompt_token_ids", field="prompts", hint="give one of them"
        )
    if texts is not None and ids is not None and len(texts) != len(ids):
        raise RequestError(
            f"{len(texts)} prompts and {len(ids)} lists of token ids",
            field="prompt_token_ids",
            hint="give one list for each prompt, or leave one of the two out",
        )
    nothing = [None] * len(texts if texts is not None else ids or ())
    return (nothing if texts is None else texts), (nothing if ids is None else ids)


def _listed(name: str, given: object) -> list[Any] | None:
    """A list of what was given one after another; None if nothing was."""
    if given is None:
        return None
    # A mapping would be taken for a list of its keys, text or bytes for a list of characters.
    if not isinstance(given, Iterable) or isinstance(given, Mapping | str | bytes):
        raise RequestError(
            f"found {type(given).__name__}",
            field=name,
            hint="give a list, one item for each prompt",
        )
    return list(given)


def params_of_each(given: Any, count: int) -> list[SamplingParams]:
    """SamplingParams of each of `count` prompts; one stands for all, None for the default.

    Raises RequestError.
    """
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    listed: list[Any] = [given] if isinstance(given, Mapping) else []
    listed = listed or _listed("sampling_params", given) or []
    wrong = [one for one in listed if not isinstance(one, SamplingParams)]
    if wrong:
        raise RequestError(
            f"found {type(wrong[0]).__name__} among them",
            field="sampling_params",
            hint="give SamplingParams, one for all or one for each prompt",
        )
    if len(listed) != count:
        raise RequestError(
            f"{len(listed)} sampling_params for {count} prompts",
            field="sampling_params",
            hint="give one for all, or one for each prompt",
        )
    return listed


def check_against(
    params: SamplingParams, vocab_size: int, max_model_len: int, *, can_think: bool = True
) -> None:
    """Raise RequestError for parameters that this model cannot honour.

    can_think: it has tokens around thoughts. A max_tokens beyond max_model_len is no mistake: the
    generation ends at whichever comes first.
    """
    so_args = read_so_args(params.so_args)
    lists = {name: getattr(params, name) for name in _TOKEN_FIELDS}
    if so_args is not None:
        lists["so_args.trigger_token_ids"] = so_args.trigger_token_ids
        lists["so_args.bound_token_id"] = (so_args.bound_token_id or 0,)
    for field, listed in lists.items():
        highest = max(listed, default=0)
        if highest >= vocab_size:
            raise _cannot(field, highest, f"token ids below {vocab_size}, the vocabulary's size")
    if params.min_tokens >= max_model_len:
        expected = f"room for it beside a prompt in max_model_len, which is {max_model_len}"
        raise _cannot("min_tokens", params.min_tokens, expected)
    counts = {"logprobs": params.num_logprobs, "prompt_logprobs": params.num_prompt_logprobs}
    for field, count in counts.items():
        if count > vocab_size:
            raise _cannot(field, count, f"at most {vocab_size}, the vocabulary's size")
    if params.max_thinking_tokens is not None and not can_think:
        expected = "none: the tokenizer has no <think> and </think>"
        raise _cannot("max_thinking_tokens", params.max_thinking_tokens, expected)


def _cannot(field: str, value: object, expected: str) -> RequestError:
    return RequestError(f"found {value}", field=field, hint=f"expected {expected}")
