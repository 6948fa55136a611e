"""The order of a V4.1 prompt (spec recipe 4.4 to 4.8).

Knows where V4.1 puts the system's text, which results it sorts, and what it keeps of an
assistant's thoughts. Does not know the texts.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from deepinfer.recipe import prompt_text
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
    content,
    effort_text,
    generation_prompt,
    image_sources,
    tool_calls,
    tool_schema,
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


def render_v41(conversation: Conversation, dialect: Dialect) -> RenderedPrompt:
    """The prompt of V4.1."""
    messages = _arranged(conversation.messages)
    extra = tools_and_format(conversation, dialect)
    if extra and not (messages and isinstance(messages[0], SystemMessage)):
        messages = [SystemMessage(""), *messages]
    return assembled(_pieces(conversation, messages, extra, dialect), image_sources(messages))


def _arranged(messages: Sequence[Message]) -> list[Message]:
    """The messages that are shown, in the order of the prompt."""
    arranged: list[Message] = []
    call_ids: list[str] = []
    for kind, group in groupby(messages, _kind):
        run = list(group)
        if kind is UserMessage:
            run = _with_sorted_results(run, call_ids)
        elif kind is LatestReminderMessage:
            run = run[:1]
        for message in run:
            if isinstance(message, AssistantMessage) and message.tool_calls:
                call_ids = [call.id for call in message.tool_calls]
        arranged.extend(run)
    return arranged


def _kind(message: Message) -> type[Message]:
    """Results of tools are in the user's blocks."""
    return UserMessage if isinstance(message, ToolMessage) else type(message)


def _with_sorted_results(run: list[Message], call_ids: Sequence[str]) -> list[Message]:
    """Results in the order of the calls; each other message keeps its place among them."""
    # Of equal ids the first counts.
    places = {call_id: place for place, call_id in reversed(list(enumerate(call_ids)))}

    def result_id(message: Message) -> str | None:
        return message.tool_call_id if isinstance(message, ToolMessage) else None

    results = [message for message in run if result_id(message) is not None]
    in_order = iter(sorted(results, key=lambda message: places.get(result_id(message) or "", 0)))
    return [message if result_id(message) is None else next(in_order) for message in run]


def _pieces(
    conversation: Conversation,
    messages: Sequence[Message],
    extra: Sequence[Piece],
    dialect: Dialect,
) -> Iterator[Piece]:
    yield from fill(dialect, "{bos}")
    effort = effort_text(conversation, dialect)
    if effort and messages and not isinstance(messages[0], SystemMessage):
        yield from _system(SystemMessage(""), dialect, effort)
    for index, (before, message) in enumerate(pairwise([None, *messages])):
        if isinstance(message, SystemMessage):
            yield from _system(message, dialect, *((effort, extra) if index == 0 else ()))
        elif isinstance(message, AssistantMessage):
            yield from _assistant(message, conversation, dialect, is_first=index == 0)
        elif isinstance(message, LatestReminderMessage):
            yield from fill(dialect, "{latest_reminder}")
            yield Piece(message.content)
        elif message is not None:
            goes_on = isinstance(before, UserMessage | ToolMessage)
            yield from [Piece(BLANK_LINE)] if goes_on else fill(dialect, "{user}")
            yield from content(message, dialect)
    last = messages[-1] if messages else None
    continues = isinstance(last, AssistantMessage) and last.prefix
    yield from generation_prompt(conversation, dialect, continues=continues)


def _system(
    message: SystemMessage, dialect: Dialect, effort: str = "", extra: Sequence[Piece] = ()
) -> Iterator[Piece]:
    yield from fill(dialect, "{system}")
    yield Piece(effort)
    yield from content(message, dialect)
    yield from extra
    if message.tools:
        yield Piece(prompt_text.ADDED_TOOLS)
        yield from joined(([tool_schema(tool, dialect)] for tool in message.tools), "\n")


def _assistant(
    message: AssistantMessage, conversation: Conversation, dialect: Dialect, *, is_first: bool
) -> Iterator[Piece]:
    yield from fill(dialect, "{assistant}")
    # Thoughts of turns that are over count only where tools are in play.
    keeps = conversation.has_tools or (message.prefix and not is_first)
    thinks = keeps and conversation.thinking
    if thinks:
        thoughts = message.reasoning_content or ""
        yield from fill(dialect, "{thinking_start}{thoughts}", thoughts=thoughts)
    # The model goes on with thoughts that nothing follows.
    if not (thinks and message.prefix and not message.content and not message.tool_calls):
        yield from fill(dialect, "{thinking_end}")
    yield Piece(message.content)
    if message.tool_calls:
        yield from tool_calls(message.tool_calls, dialect)
    if not message.prefix:
        yield from fill(dialect, "{eos}")
