"""The events of an answer as they come -> those that a client gets, streamed or whole alike.

Knows events, and what clients of tools expect. Does not know markup or protocols.

Three things are settled here. Arguments that the model wrapped in a parameter too many are
unwrapped, for which as much is held back as could be such a wrapper. What could not be read as a
call, or as JSON, becomes content, so that nothing that was said vanishes. And where only one call
was asked for, the answer ends after it.
"""

from collections.abc import Iterable

from deepinfer.recipe.conversation import ToolCall, ToolDefinition
from deepinfer.recipe.events import (
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    Unread,
)
from deepinfer.recipe.unwrap import unwrapped

_WRAPPERS = ("arguments", "input")  # what models call the parameter too many


class Settling:
    """One answer. is_single: one call at most.

    Attribute `finished`: Finished has been returned; what comes later is dropped.
    """

    def __init__(self, tools: Iterable[ToolDefinition], *, is_single: bool = False) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._is_single = is_single
        self._call: CallOpened | None = None
        self._held: list[str] | None = None
        self._wrappers: tuple[str, ...] = ()
        self._is_wrapped = False
        self.finished = False

    def take(self, events: Iterable[Event]) -> list[Event]:
        """What is certain now."""
        settled: list[Event] = []
        for event in events:
            if self.finished:
                break
            if isinstance(event, CallArguments):
                settled += self._arguments(event)
                continue
            if not isinstance(event, ContentText | Unread):
                settled += self._release()
            if isinstance(event, CallOpened) and event.index and self._is_single:
                settled.append(Finished("tool_calls"))
            elif isinstance(event, Unread):
                settled.append(ContentText(event.text))
            else:
                settled.append(event)
            if isinstance(event, CallOpened):
                self._open(event)
            self.finished = isinstance(settled[-1], Finished)
        return settled

    def _open(self, call: CallOpened) -> None:
        tool = self._tools.get(call.name)
        declared = _properties(tool)
        self._call, self._is_wrapped = call, False
        # Who declares nothing has wrapped nothing, and a parameter that is declared is no wrapper.
        self._wrappers = tuple(f'{{"{one}": ' for one in _WRAPPERS if one not in declared)
        self._held = [] if declared and self._wrappers else None

    def _arguments(self, event: CallArguments) -> list[Event]:
        if self._held is None:
            return [event]
        self._held.append(event.text)
        if self._is_wrapped:
            return []
        text = "".join(self._held)
        self._is_wrapped = text.startswith(self._wrappers)
        if self._is_wrapped or any(one.startswith(text) for one in self._wrappers):
            return []
        self._held = None
        return [CallArguments(event.index, text)]

    def _release(self) -> list[Event]:
        """The arguments that were held, unwrapped if they were wrapped."""
        if self._call is None or not self._held:
            return []
        call = ToolCall(self._call.id, self._call.name, "".join(self._held))
        index, self._held = self._call.index, None
        return [CallArguments(index, unwrapped(call, self._tools.get(call.name)).arguments)]


def _properties(tool: ToolDefinition | None) -> frozenset[str]:
    schema = tool and tool.parameters
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return frozenset(properties) if isinstance(properties, dict) else frozenset()
