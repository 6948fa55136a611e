"""What an answer turns out to be, bit by bit, in no protocol's words.

Plain data. Knows nothing of markup, tokens or protocols.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# "stop" without a call, "tool_calls" with one; the other two win over both, calls or not.
AnswerEnd = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True)
class ContentText:
    """More of the answer. logprobs: entries of its tokens, as Chat Completions has them."""

    text: str
    logprobs: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class ReasoningText:
    """More of the reasoning before the answer. logprobs: as ContentText has them."""

    text: str
    logprobs: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class CallOpened:
    """A call of the tool `name`. index: 0 for the first of the answer. id: random."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the JSON text of the arguments of call `index`.

    As the model wrote it: a number keeps its digits, and what is no JSON stays so.
    """

    index: int
    text: str


@dataclass(frozen=True)
class Unread:
    """Just before Finished: what the model wrote where only tool calls, or only JSON, may stand,
    and nothing of the kind could be read in it. The protocols leave it out.
    """

    text: str


@dataclass(frozen=True)
class Finished:
    """The last event. stop_sequence: the one that ended the answer, if one did."""

    reason: AnswerEnd
    stop_sequence: str | None = None


Event = ContentText | ReasoningText | CallOpened | CallArguments | Unread | Finished
