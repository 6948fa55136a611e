"""The tools of a Responses request, and the names under which prompts show them (spec recipe 6.2).

A prompt has one flat list of functions. Tools of a namespace get a name made of both, and what
calls them in the history gets the same. Does not know messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from deepinfer.recipe import apply_patch
from deepinfer.recipe.conversation import ToolDefinition, Version
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.tools import check_name

TOOL_SEARCH = "tool_search"
SERVER_TOOLS = "server tools are not supported"
_BETWEEN: Mapping[Version, str] = {"v4": "__", "v4.1": "::"}


class Functions:
    """All functions of one request: declared ones, found ones and those that only history has.

    rejects_web_search: what the options say of a web search.

    Attributes: `declared`, in the order of the request; `searches`, whether the client searches
    for tools; `namespaced`, the flat name of every declared tool of a namespace -> (namespace,
    local name).
    """

    def __init__(
        self, tools: Sequence[Mapping[str, Any]], version: Version, *, rejects_web_search: bool
    ) -> None:
        self._version = version
        self._rejects_web_search = rejects_web_search
        self._names: dict[tuple[str, str], str] = {}
        self._check(tools, "")
        self._taken = {one["name"] for one in tools if one["type"] in ("function", "custom")}
        self.namespaced: dict[str, tuple[str, str]] = {}
        self.declared = self._definitions(tools, self.namespaced)
        self.searches = any(map(self._searches, tools))

    def name(self, namespace: str | None, local: str) -> str:
        """The flat name of a function that history calls, declared or not."""
        if namespace is None:
            return local
        pair = (namespace, local)
        if pair not in self._names:
            self._names[pair] = self._free(pair)
        return self._names[pair]

    def found(self, tools: Sequence[Mapping[str, Any]], path: str) -> list[ToolDefinition]:
        """The functions that a tool search has found, all of them deferred.

        path: where the list stands, as errors name it. Raises ConversionError.
        """
        self._check(tools, f"{path}.")
        return [
            ToolDefinition(one.name, one.description, one.parameters, one.strict, True)
            for one in self._definitions(tools, {})
        ]

    def _check(self, tools: Sequence[Mapping[str, Any]], path: str) -> None:
        for index, tool in enumerate(tools):
            where = f"{path}tools[{index}]"
            match tool["type"]:
                case "function":
                    check_name(tool["name"], f"{where}.name")
                case "custom" if tool["name"] != apply_patch.NAME:
                    raise ConversionError(
                        f"Unsupported custom tool: '{tool['name']}'. Only 'apply_patch' is "
                        "supported.",
                        field=where,
                    )
                case "namespace":
                    _check_namespace(tool, where)
                case "web_search" | "web_search_2025_08_26" if self._rejects_web_search:
                    raise ConversionError(SERVER_TOOLS.capitalize(), field=where)

    def _definitions(
        self, tools: Sequence[Mapping[str, Any]], namespaced: dict[str, tuple[str, str]]
    ) -> list[ToolDefinition]:
        """The tools as functions; adds those of namespaces to `namespaced`."""
        found = []
        for tool in tools:
            match tool["type"]:
                case "function":
                    found.append(_definition(tool, tool["name"], tool["description"]))
                case "custom":
                    text = apply_patch.description(self._version)
                    found.append(ToolDefinition(tool["name"], text, apply_patch.PARAMETERS))
                case "namespace":
                    found += [self._of_namespace(tool, one, namespaced) for one in tool["tools"]]
                case "tool_search" if self._searches(tool):
                    found.append(
                        ToolDefinition(TOOL_SEARCH, tool["description"], tool["parameters"])
                    )
        return found

    def _searches(self, tool: Mapping[str, Any]) -> bool:
        """Whether it is the tool with which the client lets the model search for tools."""
        is_search = tool["type"] == TOOL_SEARCH and tool["execution"] == "client"
        return is_search and self._version == "v4.1"

    def _of_namespace(
        self,
        namespace: Mapping[str, Any],
        tool: Mapping[str, Any],
        namespaced: dict[str, tuple[str, str]],
    ) -> ToolDefinition:
        pair = (namespace["name"], tool["name"])
        flat = self._free(pair)
        self._names.setdefault(pair, flat)
        namespaced[flat] = pair
        text = tool["description"]
        if self._version == "v4.1" and namespace["description"]:
            text = f"{namespace['description']}\n{text or ''}"
        return _definition(tool, flat, text)

    def _free(self, pair: tuple[str, str]) -> str:
        """A name for the pair that nothing else has, and from now on the pair has."""
        flat = wanted = _BETWEEN[self._version].join(pair)
        number = 0
        while flat in self._taken:
            number += 1
            flat = f"{wanted}_{number}"
        self._taken.add(flat)
        return flat


def as_found(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools as the result of a tool search shows them: one by one, each with its namespace."""
    shown: list[dict[str, Any]] = []
    for tool in tools:
        if tool["type"] == "namespace":
            namespace = {"name": tool["name"], "description": tool["description"] or ""}
            shown += [{**one, "namespace": namespace} for one in tool["tools"]]
        else:
            shown.append(dict(tool))
    return shown


def _definition(tool: Mapping[str, Any], name: str, description: str | None) -> ToolDefinition:
    return ToolDefinition(name, description, tool["parameters"], tool["strict"])


def _check_namespace(namespace: Mapping[str, Any], where: str) -> None:
    check_name(namespace["name"], f"{where}.name")
    seen: set[str] = set()
    for index, tool in enumerate(namespace["tools"]):
        inner = f"{where}.tools[{index}]"
        if tool["type"] == "custom":
            raise ConversionError(
                "Currently custom tools are not allowed inside a namespace. Found custom tool "
                f"'{tool['name']}' in {inner}.",
                field=inner,
            )
        check_name(tool["name"], f"{inner}.name")
        if tool["name"] in seen:
            raise ConversionError("Tool names within a namespace must be unique.", field=inner)
        seen.add(tool["name"])
