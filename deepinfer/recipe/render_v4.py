"""The order of a V4 prompt (spec recipe 4.4 to 4.8).

Knows which messages V4 moves, merges and sorts, and what it keeps of an assistant's thoughts. Does
not know the texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.markup import (
    MessageWithImages,
    content,
    effort_text,
    generation_prompt,
    image_sources,
    tool_calls,
    tools_and_format,
)
from deepinfer.recipe.pieces import (
    BLANK_LINE,
    Dialect,
    Piece,
    RenderedPrompt,
    assembled,
    fill,
    joined,
)

# One message, or neighbouring messages of the user that became one.
_Turn = tuple[Message, ...]


def render_v4(conversation: Conversation, dialect: Dialect) -> RenderedPrompt:
    """The prompt of V4."""
    # An empty one is left out with its images.
    systems = [m for m in conversation.messages if isinstance(m, SystemMessage) and m.content]
    turns = _arranged([m for m in conversation.messages if not isinstance(m, SystemMessage)])
    shown = [*systems, *(message for turn in turns for message in turn)]
    return assembled(_pieces(conversation, systems, turns, dialect), image_sources(shown))


def _arranged(messages: Sequence[Message]) -> list[_Turn]:
    """The turns in the order of the prompt."""
    turns: list[_Turn] = []
    for is_user, group in groupby(messages, lambda message: isinstance(message, UserMessage)):
        run = tuple(group)
        turns.extend([run] if is_user else [(_with_sorted_calls(m),) for m in run])
    # As they stood: sorting may move an assistant's message, and its place still counts.
    num_calls = [_num_calls(turn[0]) for turn in turns]
    for index, count in enumerate(num_calls):
        start, end = index + 1, index + 1 + count
        if end <= len(turns):
            turns[start:end] = sorted(turns[start:end], key=_result_order)
    return turns


def _with_sorted_calls(message: Message) -> Message:
    if isinstance(message, AssistantMessage) and message.tool_calls:
        return replace(message, tool_calls=tuple(sorted(message.tool_calls, key=lambda c: c.id)))
    return message


def _num_calls(message: Message) -> int:
    return len(message.tool_calls or ()) if isinstance(message, AssistantMessage) else 0


def _result_order(turn: _Turn) -> tuple[int, str]:
    """Results without an id, then those with one, then everything else."""
    message = turn[0]
    if not isinstance(message, ToolMessage):
        return 2, ""
    return (0, "") if message.tool_call_id is None else (1, message.tool_call_id)


def _pieces(
    conversation: Conversation,
    systems: Iterable[SystemMessage],
    turns: Sequence[_Turn],
    dialect: Dialect,
) -> Iterator[Piece]:
    yield from fill(dialect, "{bos}")
    yield Piece(effort_text(conversation, dialect))
    yield from _merged(systems, dialect)
    yield from tools_and_format(conversation, dialect)
    continues = False
    for before, turn in pairwise([(), *turns]):
        message = turn[0]
        continues = turn is turns[-1] and isinstance(message, AssistantMessage) and message.prefix
        if isinstance(message, AssistantMessage):
            yield from _assistant(message, conversation, dialect, continues=continues)
        elif isinstance(message, LatestReminderMessage):
            yield from fill(dialect, "{latest_reminder}")
            yield Piece(message.content)
        else:
            yield from _block_start(before, turn, dialect)
            yield from _merged((m for m in turn if isinstance(m, MessageWithImages)), dialect)
    yield from generation_prompt(conversation, dialect, continues=continues)


def _merged(messages: Iterable[MessageWithImages], dialect: Dialect) -> Iterator[Piece]:
    """The messages that say something; the result of a tool is markup at least."""
    parts = (content(m, dialect) for m in messages if m.content or isinstance(m, ToolMessage))
    return joined(parts)


def _block_start(before: _Turn, turn: _Turn, dialect: Dialect) -> Iterator[Piece]:
    """A block of the user goes on, or starts: a result does not follow text within a block."""
    can_follow = UserMessage | ToolMessage if isinstance(turn[0], UserMessage) else ToolMessage
    if before and isinstance(before[0], can_follow):
        yield Piece(BLANK_LINE)
    else:
        yield from fill(dialect, "{user}")


def _assistant(
    message: AssistantMessage, conversation: Conversation, dialect: Dialect, *, continues: bool
) -> Iterator[Piece]:
    yield from fill(dialect, "{assistant}")
    # Thoughts of turns that are over count only where tools are in play.
    if (conversation.has_tools or message.prefix) and message.reasoning_content is not None:
        thoughts = message.reasoning_content
        yield from fill(dialect, "{thinking_start}{thoughts}", thoughts=thoughts)
    if not (message.prefix and conversation.thinking and not message.content):
        yield from fill(dialect, "{thinking_end}")
    yield Piece(message.content)
    if message.tool_calls is not None:
        yield from tool_calls(message.tool_calls, dialect)
    if not continues:
        yield from fill(dialect, "{eos}")
