"""The fields of a request, sorted: those that the recipe reads, in its shape, and those that it
does not know or would refuse, kept apart.

Knows how the three protocols spell things. Does not know what becomes of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.recipe.errors import BodyError
from deepinfer.recipe.request import Protocol
from deepinfer.server.errors import ApiError
from deepinfer.server.sampling_fields import SAME_NAMES

# The recipe checks these, too; what they come to is settled later.
_BOTH = ("temperature", "top_p", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True)
class Shaped:
    """body: for the recipe, with any forced choice of tools as auto. sampling: for SamplingParams.
    is_forced: a call must be made; named_tool: of this tool. tool_choice: as it was given.
    is_single: one call at most. schema: of the whole answer, where the recipe has no such thing.
    """

    body: dict[str, Any]
    sampling: dict[str, Any]
    is_forced: bool = False
    named_tool: str | None = None
    tool_choice: Any = None
    is_single: bool = False
    schema: Any = None

    @property
    def recipe_can_force(self) -> bool:
        """The recipe has a prompt for this choice, where there are no thoughts."""
        choice = self.tool_choice
        return not (isinstance(choice, dict) and choice.get("type") == "any")


def shape_for_recipe(protocol: Protocol, given: Mapping[str, Any]) -> Shaped:
    """Sort the fields of a request. Raises RequestError or ApiError."""
    body = dict(given)
    sampling = {name: body[name] for name in SAME_NAMES if name in body}
    for name in ("logit_bias", "thinking_budget"):
        if name in body:
            sampling[name] = body.pop(name)
    for name in SAME_NAMES:
        if name not in _BOTH:
            body.pop(name, None)
    return _SHAPES[protocol](body, sampling)


def _chat(body: dict[str, Any], sampling: dict[str, Any]) -> Shaped:
    _one_limit(body)
    _budget(body.get("thinking"), sampling)
    messages = body.get("messages")
    if isinstance(messages, list):
        body["messages"] = [_as_system(one) for one in messages]
    parallel = body.pop("parallel_tool_calls", True)
    choice, named = body.get("tool_choice"), None
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        named = choice["function"].get("name")
    return _settled(body, sampling, named, is_single=parallel is False)


def _responses(body: dict[str, Any], sampling: dict[str, Any]) -> Shaped:
    parallel = body.pop("parallel_tool_calls", True)
    choice, named = body.get("tool_choice"), None
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        named = choice.get("name")
    return _settled(body, sampling, named, is_single=parallel is False)


def _messages(body: dict[str, Any], sampling: dict[str, Any]) -> Shaped:
    _budget(body.get("thinking"), sampling)
    choice = body.get("tool_choice")
    asked = choice if isinstance(choice, dict) else {}
    kind, single = asked.get("type"), asked.get("disable_parallel_tool_use") is True
    named = asked.get("name") if kind == "tool" else None
    config, schema = body.get("output_config"), None
    if isinstance(config, dict) and config.get("format") is not None:
        schema = _message_schema(config["format"])
    is_forced = kind in ("any", "tool")
    shaped = _settled(body, sampling, named, is_single=single, is_forced=is_forced)
    if shaped.is_forced:
        body["tool_choice"] = {"type": "auto"}
    return replace(shaped, schema=schema)


_SHAPES: Mapping[Protocol, Callable[[dict[str, Any], dict[str, Any]], Shaped]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
}


def _settled(
    body: dict[str, Any],
    sampling: dict[str, Any],
    named: Any,
    *,
    is_single: bool,
    is_forced: bool = False,
) -> Shaped:
    """With a forced choice of tools taken out of the body."""
    choice = body.get("tool_choice")
    is_forced = is_forced or choice == "required" or isinstance(named, str)
    if is_forced and not body.get("tools"):
        raise ApiError(400, "tool_choice: there are no tools to choose from.", "tool_choice")
    if is_forced:
        body["tool_choice"] = "auto"
    named_tool = named if isinstance(named, str) else None
    return Shaped(body, sampling, is_forced, named_tool, choice, is_single)


def _as_system(message: Any) -> Any:
    """Developers' messages are the system's."""
    if isinstance(message, dict) and message.get("role") == "developer":
        return {**message, "role": "system"}
    return message


def _one_limit(body: dict[str, Any]) -> None:
    newer = body.pop("max_completion_tokens", None)
    older = body.setdefault("max_tokens", newer)
    if newer is not None and newer != older:
        message = "max_tokens and max_completion_tokens differ; they are two names of one limit."
        raise ApiError(400, message, "max_completion_tokens", "invalid_value")


def _budget(thinking: Any, sampling: dict[str, Any]) -> None:
    """The protocol's own limit on thoughts, unless the other name of it was used."""
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if budget is not None:
        sampling.setdefault("thinking_budget", budget)


def _message_schema(form: Any) -> Any:
    if not isinstance(form, dict) or form.get("type") != "json_schema" or "schema" not in form:
        what = 'output_config.format: expected {"type": "json_schema", "schema": ...}'
        raise BodyError(what, field="output_config.format")
    return form["schema"]
