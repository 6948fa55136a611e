"""A rendered prompt to token ids (spec recipe 4.9).

Knows the prompt's ranges. Does not know how text is cut into tokens: the caller's tokenizer does.
"""

from collections.abc import Mapping
from typing import Protocol

from deepinfer.errors import RequestError
from deepinfer.recipe.pieces import RenderedPrompt


class PromptTokenizer(Protocol):
    """What encoding needs of a tokenizer; deepinfer.tokenizer has one."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Spelling to id of each control token."""

    def encode(self, text: str, *, add_bos: bool) -> list[int]:
        """The ids of a text. A control token spelled in it is text like any other."""


def encode(rendered: RenderedPrompt, tokenizer: PromptTokenizer) -> list[int]:
    """The ids of a prompt: one for each special range, and those of the text in between.

    An image placeholder is one id here, whatever the image will take up. Raises RequestError
    (field "prompt") for a control token that the tokenizer lacks.
    """
    ids: list[int] = []
    text_start = 0
    for start, end in rendered.special_ranges:
        ids += _text_ids(rendered.prompt[text_start:start], tokenizer)
        ids.append(_control_id(rendered.prompt[start:end], tokenizer))
        text_start = end
    return ids + _text_ids(rendered.prompt[text_start:], tokenizer)


def _text_ids(text: str, tokenizer: PromptTokenizer) -> list[int]:
    return tokenizer.encode(text, add_bos=False) if text else []


def _control_id(spelling: str, tokenizer: PromptTokenizer) -> int:
    token_id = tokenizer.control_ids.get(spelling)
    if token_id is None:
        raise RequestError(
            f'failed to encode conversation: special token "{spelling}" is not in the added '
            "vocabulary",
            field="prompt",
            hint="serve the model with the tokenizer of its own checkpoint and version",
        )
    return token_id
