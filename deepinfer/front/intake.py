"""Prompts as users give them -> token ids that the engine takes. Refuses by the field's name."""

import operator
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.tokenizer.tokenizer import Tokenizer


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
