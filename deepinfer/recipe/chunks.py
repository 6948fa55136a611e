"""What an engine tells of one answer while it grows.

Plain data. Knows nothing of what the text means or who reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from deepinfer.outputs import TokenLogprob

EndReason = Literal["Stop", "Length", "ContentFilter"]


@dataclass(frozen=True)
class Ready:
    """The engine has taken the request. cached_tokens: of prompt_tokens, those it need not run."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    system_fingerprint: str | None = None


@dataclass(frozen=True)
class Text:
    """More text, already decoded. num_tokens: how many tokens it counts for."""

    text: str
    num_tokens: int = 0


@dataclass(frozen=True)
class Tokens:
    """More tokens. logprobs: one for each id, or None if none were asked for."""

    ids: Sequence[int]
    logprobs: Sequence[TokenLogprob] | None = None


@dataclass(frozen=True)
class Finish:
    """No more will come."""

    reason: EndReason = "Stop"


Chunk = Ready | Text | Tokens | Finish


@dataclass(frozen=True)
class Usage:
    """Tokens of an answer. reasoning_tokens: None where nobody can tell."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
