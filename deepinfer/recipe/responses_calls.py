"""The items of a Responses answer that are calls of tools (spec recipe 8.2).

Knows one call at a time. Does not know other items, or how an answer is read.
"""

from typing import Any

from deepinfer.recipe.custom_input import CustomInput
from deepinfer.recipe.events import CallOpened
from deepinfer.recipe.json_text import read_json
from deepinfer.recipe.parts import Note
from deepinfer.recipe.request import ResponsesEcho
from deepinfer.recipe.responses_items import Item, Place, Said, Status

_SEARCH_TOOL = "tool_search"


class CallItem(Item):
    """A call. Its text is the JSON of its arguments."""

    def __init__(self, place: Place, call: CallOpened) -> None:
        super().__init__(place)
        self._call = call
        self._text: list[str] = []


class FunctionCallItem(CallItem):
    """namespace: of the tool; None if it has none. name: the tool's own, within the namespace."""

    prefix = "fc"

    def __init__(
        self, place: Place, call: CallOpened, name: str, namespace: str | None = None
    ) -> None:
        super().__init__(place, call)
        self._names = {"name": name}
        if namespace is not None:
            self._names["namespace"] = namespace

    def add(self, text: str, logprobs: Note = ()) -> list[Said]:
        """A delta."""
        self._text.append(text)
        return [("function_call_arguments.delta", {"delta": text, "item_id": self.id})]

    def close(self, status: Status, *, call_follows: bool = False) -> list[Said]:
        """The arguments, then the item."""
        fields = {"arguments": "".join(self._text), "item_id": self.id}
        return [("function_call_arguments.done", fields), *super().close(status)]

    def _describe(self, status: Status) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": self.id,
            "status": status,
            "call_id": self._call.id,
            **self._names,
            "arguments": "".join(self._text),
        }


class CustomToolCallItem(CallItem):
    """A call whose input is plain text."""

    prefix = "ctc"

    def __init__(self, place: Place, call: CallOpened) -> None:
        super().__init__(place, call)
        self._input = CustomInput()

    def add(self, text: str, logprobs: Note = ()) -> list[Said]:
        """A delta, unless nothing is certain."""
        return self._delta(self._input.push(text))

    def close(self, status: Status, *, call_follows: bool = False) -> list[Said]:
        """The input, then the item."""
        rest = self._delta(self._input.finish())
        fields = {"input": "".join(self._text), "item_id": self.id}
        return [*rest, ("custom_tool_call_input.done", fields), *super().close(status)]

    def _delta(self, text: str) -> list[Said]:
        if not text:
            return []
        self._text.append(text)
        return [("custom_tool_call_input.delta", {"delta": text, "item_id": self.id})]

    def _describe(self, status: Status) -> dict[str, Any]:
        return {
            "type": "custom_tool_call",
            "id": self.id,
            "status": status,
            "call_id": self._call.id,
            "name": self._call.name,
            "input": "".join(self._text),
        }


class ToolSearchCallItem(CallItem):
    """A search for tools: said as a whole."""

    prefix = "tsc"

    def add(self, text: str, logprobs: Note = ()) -> list[Said]:
        """Nothing yet."""
        self._text.append(text)
        return []

    def _describe(self, status: Status) -> dict[str, Any]:
        arguments: Any = {}
        if status != "in_progress":
            try:
                arguments = read_json("".join(self._text))
            except ValueError:
                status = "incomplete"
        return {
            "type": "tool_search_call",
            "id": self.id,
            "status": status,
            "call_id": self._call.id,
            "execution": "client",
            "arguments": arguments,
        }


def call_item(call: CallOpened, place: Place, echo: ResponsesEcho) -> CallItem:
    """The item of a call, as the tool of its name was declared."""
    if call.name in echo.custom_tools:
        return CustomToolCallItem(place, call)
    if call.name == _SEARCH_TOOL and echo.client_tool_search:
        return ToolSearchCallItem(place, call)
    namespace, name = echo.namespace_tools.get(call.name, (None, call.name))
    return FunctionCallItem(place, call, name, namespace)
