"""An example to tokens, just as `LLM.chat` writes its prompt and reads its answer.

Knows the recipe and which tokens are the assistant's own. Does not know tasks or rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from deepinfer.front.chat import MODEL_NAME
from deepinfer.recipe.conversation import AssistantMessage, Conversation
from deepinfer.recipe.convert import convert
from deepinfer.recipe.encode import PromptTokenizer, encode
from deepinfer.recipe.render import render
from deepinfer.tools.eval_examples import Example


class Document(NamedTuple):
    """Token ids from BOS on, and which of them a model must learn to say."""

    token_ids: list[int]
    is_target: list[bool]


class TrainingTokenizer(PromptTokenizer, Protocol):
    """What rendering needs of deepinfer.tokenizer's tokenizer."""

    bos_id: int
    eos_id: int
    pad_id: int
    vocab_len: int

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for."""


def conversation_of(example: Example) -> Conversation:
    """The conversation up to the answer."""
    options = example.options
    body: dict[str, Any] = {
        "model": MODEL_NAME,
        "messages": list(example.messages),
        "thinking": {"type": "enabled" if options["thinking"] else "disabled"},
        **{key: value for key, value in options.items() if key != "thinking"},
    }
    return convert("chat", body).conversation


def document_of(example: Example, tokenizer: TrainingTokenizer) -> Document:
    """The prompt, the answer and the end token.

    Targets are the answer, and earlier answers of the same conversation that are shown as the model
    would have written them: after its own turn was opened in the same way.
    """
    conversation = conversation_of(example)
    said = example.answer
    # As a message to be continued it keeps its thoughts, and gets no end: the end is added here.
    answer = AssistantMessage(said.content, said.thoughts, said.calls or None, prefix=True)
    prompt = encode(render(conversation, "v4.1"), tokenizer)
    answered = replace(conversation, messages=(*conversation.messages, answer))
    token_ids = [*encode(render(answered, "v4.1"), tokenizer), tokenizer.eos_id]
    assert token_ids[: len(prompt)] == prompt  # else a model would never see its prompt like that
    return Document(token_ids, _targets(token_ids, prompt[-2:], tokenizer.eos_id))


def text_document(text: str, tokenizer: TrainingTokenizer, longest: int) -> Document:
    """Plain text, cut to `longest` tokens, BOS included. It has no end token: texts go on."""
    token_ids = [tokenizer.bos_id, *tokenizer.encode(text, add_bos=False)][:longest]
    return Document(token_ids, [False] + [True] * (len(token_ids) - 1))


def _targets(token_ids: Sequence[int], opening: Sequence[int], eos_id: int) -> list[bool]:
    """True from after each `opening` to its end token, which counts."""
    inside, targets = False, []
    for place, token_id in enumerate(token_ids):
        inside = inside or list(token_ids[max(0, place - 2) : place]) == list(opening)
        targets.append(inside)
        inside = inside and token_id != eos_id
    return targets
