"""Conversations as users of chat APIs give them -> prompts and parameters; answers back into
messages.

Knows the recipe, the tokenizer and structured output. Does not know how tokens come about.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deepinfer.errors import RequestError
from deepinfer.outputs import FinishReason, RequestOutput, TokenLogprob
from deepinfer.recipe.convert import convert, resolve_max_tokens
from deepinfer.recipe.encode import encode
from deepinfer.recipe.events import Event, Finished
from deepinfer.recipe.message import ParsedMessage, parsed_message
from deepinfer.recipe.output_parser import OutputParser
from deepinfer.recipe.render import render
from deepinfer.recipe.request import ConversationRequest, ParsingOptions
from deepinfer.sampling_params import SamplingParams
from deepinfer.so_args import SchemaType, SoArgs, read_so_args
from deepinfer.tokenizer.tokenizer import Tokenizer

# Chat requests name a model; here it says which recipe is meant.
MODEL_NAME = "DeepSeek-V4.1-Flash"
EFFORTS = ("low", "high", "max")
Thinking = bool | Literal["low", "high", "max"]
ChatMessage = Mapping[str, Any]


@dataclass(frozen=True)
class ChatOutput:
    """One conversation's result.

    messages: an answer for each continuation. output: what the engine generated, token by token;
    its texts have the markup in them. error: set for a conversation that was refused.
    """

    messages: tuple[ParsedMessage, ...]
    output: RequestOutput

    @property
    def error(self) -> RequestError | None:
        """Why the conversation was refused, None if it was not."""
        return self.output.error

    @property
    def message(self) -> ParsedMessage:
        """The first answer; raises the conversation's error if it has one."""
        if self.error is not None:
            raise self.error
        return self.messages[0]


@dataclass(frozen=True)
class Chat:
    """A conversation that is ready for the engine."""

    prompt: str
    prompt_ids: list[int]
    params: SamplingParams
    request: ConversationRequest
    parsing: ParsingOptions


@dataclass
class Answer:
    """One continuation of a chat while it grows."""

    parser: OutputParser
    events: list[Event] = field(default_factory=list)

    stop_sequence: str | None = None

    def read(self, token_id: int, logprob: TokenLogprob | None) -> None:
        """Take one more token."""
        self._take(self.parser.push_tokens([token_id], None if logprob is None else [logprob]))

    def end(self, reason: FinishReason) -> None:
        """Take the end, unless a stop string came before it."""
        self._take(self.parser.finish("Stop" if reason == "stop" else "Length"))

    def _take(self, events: list[Event]) -> None:
        self.events += events
        if events and isinstance(events[-1], Finished):
            self.stop_sequence = events[-1].stop_sequence


def prepare_chat(
    messages: Sequence[ChatMessage],
    params: SamplingParams | None,
    tokenizer: Tokenizer,
    max_model_len: int,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    thinking: Thinking = True,
    response_format: Mapping[str, Any] | None = None,
) -> Chat:
    """Check a conversation and write its prompt.

    Fields as in Chat Completions. params None: temperature 1 and as many tokens as the recipe
    allows. Raises RequestError.
    """
    body, is_forced = _body(messages, tools, tool_choice, thinking, response_format)
    stops = () if params is None else tuple(params.stop or ())
    request = convert("chat", body)
    prompt, prompt_ids = write_prompt(request, tokenizer, "messages")
    if params is None:
        inference = request.inference
        params = SamplingParams(
            temperature=inference.temperature,
            top_p=inference.top_p,
            max_tokens=resolve_max_tokens(request, len(prompt_ids), max_model_len),
        )
    so_args = output_structure(request, params, tokenizer, is_forced=is_forced)
    # Stop strings act in the answer alone, not in thoughts or calls; a structure ends by itself.
    parsing = replace(request.parsing, stop_sequences=() if so_args else stops)
    params = replace(params, stop=None, so_args=so_args)
    return Chat(prompt, prompt_ids, params, request, parsing)


def write_prompt(
    request: ConversationRequest, tokenizer: Tokenizer, field: str
) -> tuple[str, list[int]]:
    """(the prompt, its ids). Raises RequestError naming `field` where there are images."""
    rendered = render(request.conversation, request.version)
    if rendered.image_sources:
        hint = "send text; images come in a later version"
        raise RequestError("images cannot be read yet", field=field, hint=hint)
    return rendered.prompt, encode(rendered, tokenizer)


def new_answers(chat: Chat, tokenizer: Tokenizer) -> list[Answer]:
    """One for each continuation."""
    return [Answer(OutputParser(chat.parsing, tokenizer)) for _ in range(chat.params.n)]


def chat_output(chat: Chat, answers: Sequence[Answer], output: RequestOutput) -> ChatOutput:
    """What the caller gets."""
    tools = chat.request.conversation.tools
    return ChatOutput(tuple(parsed_message(a.events, tools) for a in answers), output)


def _body(
    messages: Any,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None,
    thinking: Thinking,
    response_format: Mapping[str, Any] | None,
) -> tuple[dict[str, Any], bool]:
    """The request of Chat Completions, and whether a call must follow the thoughts.

    The recipe refuses to force a call after thoughts. Here the grammar forces it, and the prompt is
    that of tools which may be called.
    """
    if isinstance(thinking, str) and thinking not in EFFORTS:
        expected = f"true, false, {', '.join(EFFORTS)}"
        raise RequestError(
            f"found {thinking!r}", field="thinking", hint=f"expected one of {expected}"
        )
    if tool_choice not in (None, "auto", "none") and not tools:
        hint = "give tools, or leave the choice out"
        raise RequestError("there is no tool to choose", field="tool_choice", hint=hint)
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        hint = 'give a list such as [{"role": "user", "content": "Hello"}]'
        raise RequestError(f"found {type(messages).__name__}", field="messages", hint=hint)
    found = {
        "model": MODEL_NAME,
        "messages": list(messages),
        "thinking": {"type": "enabled" if thinking else "disabled"},
        "reasoning_effort": thinking if isinstance(thinking, str) else None,
        "tools": tools,
        "tool_choice": tool_choice,
        "response_format": response_format,
    }
    body = {key: value for key, value in found.items() if value is not None}
    try:
        # The recipe reads JSON; what JSON cannot say would be understood in some other way.
        body = json.loads(json.dumps(body))
    except (TypeError, ValueError, RecursionError) as error:
        hint = "messages and tools are made of what JSON can say"
        raise RequestError(f"not JSON: {error}", field="messages", hint=hint) from None
    is_forced = bool(thinking and tools) and body.get("tool_choice", "auto") not in ("auto", "none")
    if is_forced:
        # The recipe itself checks the choice, and keeps the tool that is named.
        tools_kept = convert("chat", body | {"thinking": {"type": "disabled"}}).conversation.tools
        names = {tool.name for tool in tools_kept}
        body["tools"] = [tool for tool in body["tools"] if tool["function"]["name"] in names]
        body["tool_choice"] = "auto"
    return body, is_forced


def output_structure(
    request: ConversationRequest,
    params: SamplingParams,
    tokenizer: Tokenizer,
    *,
    is_forced: bool,
) -> SoArgs | None:
    """What the answer must obey, from its first token on: after the thoughts, if there are any.

    is_forced: a call must follow, of tools that the prompt shows as ones that may be called. Raises
    RequestError where two structures were asked for, or one beside tools that may be called.
    """
    asked = read_so_args(params.so_args)
    wanted = request.inference.output_constraint
    if request.conversation.has_tools and request.conversation.response_format != "text":
        what = "it could not be enforced beside tools that may be called"
        hint = 'leave out the tools, or say tool_choice "none"'
        raise RequestError(what, field="response_format", hint=hint)
    kinds: dict[str, SchemaType] = {"json": "json", "regex": "regex"}
    kinds |= {"tool_call": "tool_calls"} if is_forced else {}
    kinds["tool_call_required"] = "open_tool_calls"
    if wanted is not None and wanted.kind in kinds:
        if asked is not None:
            hint = "give one of response_format, a forced tool_choice and so_args"
            raise RequestError("two structures at once", field="so_args", hint=hint)
        asked = SoArgs(kinds[wanted.kind], wanted.schema)
    return None if asked is None else after_thoughts(asked, request, tokenizer)


def after_thoughts(asked: SoArgs, request: ConversationRequest, tokenizer: Tokenizer) -> SoArgs:
    """The same, to be obeyed once the thoughts have ended, if there are any and nothing else was
    said of when."""
    thinks = request.parsing.thinking_stage in ("ReasoningStart", "ReasoningContinuation")
    if asked.trigger_token_ids or not thinks:
        return asked
    assert tokenizer.thinking_ids is not None  # the prompt has one of them
    return replace(asked, trigger_token_ids=(tokenizer.thinking_ids[1],))
