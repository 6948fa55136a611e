"""The answer of Completions: chunks of a stream, and the whole.

Knows the protocol's objects. Does not know the engine or connections.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deepinfer.outputs import TokenLogprob
from deepinfer.recipe.chunks import Usage
from deepinfer.server.writers import chat_usage
from deepinfer.tokenizer.tokenizer import Tokenizer


@dataclass
class Logprobs:
    """Log-probabilities in the protocol's four lists. offset: of the next token in the text."""

    tokenizer: Tokenizer
    offset: int = 0
    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, token_id: int, logprob: TokenLogprob | None) -> None:
        """One more token; the first of a prompt follows nothing and has no logprob."""
        text = self._text(token_id)
        self.tokens.append(text)
        self.text_offset.append(self.offset)
        self.offset += len(text)
        self.token_logprobs.append(None if logprob is None else logprob.logprob)
        top = None
        if logprob is not None and logprob.top:
            top = {self._text(one): value for one, value in reversed(logprob.top)}
            top = dict(reversed(top.items()))
        self.top_logprobs.append(top)

    def take(self) -> dict[str, Any] | None:
        """All since the last call; None if there was nothing."""
        if not self.tokens:
            return None
        taken = {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs if any(self.top_logprobs) else None,
            "text_offset": self.text_offset,
        }
        self.tokens, self.token_logprobs, self.top_logprobs, self.text_offset = [], [], [], []
        return taken

    def _text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class TextHead:
    """What all objects of one answer begin with."""

    response_id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def object(self, choices: Sequence[Any], usage: Usage | None = None) -> dict[str, Any]:
        """A chunk, or the whole; usage is left out where it is None."""
        found: dict[str, Any] = {
            "id": self.response_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        }
        return found if usage is None else {**found, "usage": chat_usage(usage)}


def choice(
    index: int,
    text: str,
    logprobs: dict[str, Any] | None,
    finish_reason: str | None,
    stop_reason: str | int | None,
) -> dict[str, Any]:
    """One choice of an object."""
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }
