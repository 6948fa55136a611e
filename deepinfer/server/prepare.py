"""A request of one of the three protocols of conversations -> what the engine takes, and how its
answer is read.

Knows the recipe, and where clients expect more than it gives: any number of choices, forced calls
after thoughts, sampling values that count. Does not know HTTP, nor how tokens come about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.front.chat import MODEL_NAME, after_thoughts, output_structure, write_prompt
from deepinfer.front.intake import check_against
from deepinfer.recipe.convert import convert, resolve_max_tokens
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.request import (
    ConversationRequest,
    OutputConstraint,
    ParsingOptions,
    Protocol,
)
from deepinfer.recipe.tools import check_schema, function_tools, unknown_tool
from deepinfer.sampling_params import SamplingParams
from deepinfer.server.sampling_fields import sampling_params
from deepinfer.server.shape_for_recipe import Shaped, shape_for_recipe
from deepinfer.server.state import ServedModel
from deepinfer.server.strict_tools import optional_calls, wants_strict_calls
from deepinfer.structured.output_grammar import output_grammar


@dataclass(frozen=True)
class Job:
    """A conversation that is ready for the engine.

    grammar: text, of `params.so_args`. is_single: at most one call is answered.
    """

    request: ConversationRequest
    prompt: str
    prompt_ids: list[int]
    params: SamplingParams
    parsing: ParsingOptions
    grammar: str | None
    is_single: bool

    @property
    def protocol(self) -> Protocol:
        """Whose words the answer is in."""
        return self.request.protocol


def prepare(
    protocol: Protocol, body: Mapping[str, Any], model: ServedModel, *, official_sampling: bool
) -> Job:
    """Check a request and write its prompt.

    body: the fields that are honoured, null ones left out; `model` is checked already.
    Raises RequestError.
    """
    shaped = shape_for_recipe(protocol, body)
    request, is_forced = _converted(protocol, shaped)
    request = replace(request, model=body.get("model") or model.names[0])
    tokenizer, limit = model.tokenizer, model.info.max_model_len
    prompt, prompt_ids = write_prompt(request, tokenizer, _prompt_field(protocol))
    most = resolve_max_tokens(request, len(prompt_ids), limit)
    params = sampling_params(shaped.sampling, request, most, official=official_sampling)
    so_args = output_structure(request, params, tokenizer, is_forced=is_forced)
    grammar = None if so_args is None else output_grammar(so_args)
    # Stop strings act in the answer alone, not in thoughts or calls; a structure ends by itself.
    parsing = replace(request.parsing, stop_sequences=()) if so_args else request.parsing
    constraint = request.inference.output_constraint
    if so_args is None and constraint is not None and wants_strict_calls(request):
        so_args, grammar = optional_calls(constraint.schema)
        so_args = after_thoughts(so_args, request, tokenizer)
    params = replace(params, so_args=so_args)
    can_think = tokenizer.thinking_ids is not None
    check_against(params, model.config.vocab_size, limit, can_think=can_think)
    return Job(request, prompt, prompt_ids, params, parsing, grammar, shaped.is_single)


def _converted(protocol: Protocol, shaped: Shaped) -> tuple[ConversationRequest, bool]:
    """(the recipe's view of the request, with what it would not have taken put back in; whether
    the grammar must see to a call)."""
    body = {**shaped.body, "model": MODEL_NAME}
    request = convert(protocol, body)
    if shaped.schema is not None:
        request = _with_schema(request, shaped.schema)
    if not shaped.is_forced:
        return request, False
    if not request.conversation.thinking and shaped.recipe_can_force:
        # Without thoughts the recipe has a way of its own: the prompt begins the block of calls.
        return convert(protocol, {**body, "tool_choice": shaped.tool_choice}), False
    return _forced(request, shaped), True


def _forced(request: ConversationRequest, shaped: Shaped) -> ConversationRequest:
    """The recipe refuses to force a call after thoughts. Here the grammar forces it, and the prompt
    is that of tools which may be called."""
    conversation, echo = request.conversation, request.echo
    tools = conversation.tools
    if shaped.named_tool is not None:
        tools = tuple(tool for tool in tools if tool.name == shaped.named_tool)
        if not tools:
            raise unknown_tool(shaped.named_tool)
    if not tools:
        hint = "give tools, or leave the choice out"
        raise RequestError("there is no tool to choose", field="tool_choice", hint=hint)
    if echo is not None:
        echo = replace(echo, tool_choice=shaped.tool_choice)
    constraint = OutputConstraint("tool_call", function_tools(tools))
    return replace(
        request,
        conversation=replace(conversation, tools=tools),
        inference=replace(request.inference, output_constraint=constraint),
        echo=echo,
    )


def _with_schema(request: ConversationRequest, schema: Any) -> ConversationRequest:
    """An answer in JSON for Messages, in which the recipe has none; the prompt says so as in Chat
    Completions."""
    check_schema(schema, "Invalid json schema: ", "output_config.format.schema")
    conversation = request.conversation
    constraint = request.inference.output_constraint
    if not conversation.has_tools:
        constraint = OutputConstraint("json", compact(schema))
    return replace(
        request,
        conversation=replace(conversation, response_format="json_schema", response_schema=schema),
        inference=replace(request.inference, output_constraint=constraint),
    )


def _prompt_field(protocol: Protocol) -> str:
    return "input" if protocol == "responses" else "messages"
