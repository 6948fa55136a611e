"""Every field of every API: honoured, taken without effect, or refused by name. Only data.

docs/server.md shows the same, which a test holds. A field that is in no table is refused as
unknown, so that a misspelt one is not silently without effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deepinfer.server.errors import ApiError

Use = Literal["honoured", "no effect", "refused"]
Api = Literal["chat", "completions", "responses", "messages"]


@dataclass(frozen=True)
class FieldUse:
    """use, and why or how. allowed: of a refused field, the values that ask for what happens
    anyway."""

    use: Use
    note: str = ""
    allowed: tuple[Any, ...] = ()


def _honoured(names: str, note: str = "") -> dict[str, FieldUse]:
    return {name: FieldUse("honoured", note) for name in names.split()}


def _no_effect(names: str, note: str) -> dict[str, FieldUse]:
    return {name: FieldUse("no effect", note) for name in names.split()}


def _refused(names: str, note: str, *allowed: Any) -> dict[str, FieldUse]:
    return {name: FieldUse("refused", note, allowed) for name in names.split()}


_EXTRAS = {
    **_honoured("top_k min_p repetition_penalty", "sampling, as in SamplingParams"),
    **_honoured("min_tokens ignore_eos stop_token_ids", "ends, as in SamplingParams"),
    **_honoured("cache_salt", "prefixes are shared only between requests with the same one"),
}
_THINKING = _honoured("thinking_budget", "most tokens of thoughts; then the answer must begin")
_LABELS = "a label for the caller's own accounts; nothing is kept"
_NOT_KEPT = "nothing is kept between requests; send the whole conversation"
_TIER = "there is one tier of service"

CHAT: Mapping[str, FieldUse] = {
    **_honoured("model messages stream temperature top_p stop seed n"),
    **_honoured("stream_options", "include_usage"),
    **_honoured("max_tokens max_completion_tokens", "two names of one limit, thoughts included"),
    **_honoured("frequency_penalty presence_penalty logit_bias logprobs top_logprobs"),
    **_honoured("response_format", "text, json_object, json_schema, regex; enforced"),
    **_honoured("tools", "functions; strict ones are enforced"),
    **_honoured("tool_choice", "enforced, after the thoughts if there are any"),
    **_honoured("parallel_tool_calls", "false: the answer ends after its first call"),
    **_honoured("reasoning_effort thinking", "budget_tokens is thinking_budget"),
    **_THINKING,
    **_EXTRAS,
    **_no_effect("user metadata safety_identifier", _LABELS),
    **_no_effect("prompt_cache_key prompt_cache_retention", "equal prefixes are found anyway"),
    **_no_effect("verbosity", "the model has no such switch"),
    **_no_effect("prediction", "drafts come from the model's own module"),
    **_refused("store", _NOT_KEPT, False),
    **_refused("service_tier", _TIER, "auto", "default"),
    **_refused("modalities", "answers are text", ["text"]),
    **_refused("audio", "answers are text"),
    **_refused("web_search_options", "there is no search; give a tool of your own"),
    **_refused("functions function_call", "use tools and tool_choice"),
    **_refused("best_of use_beam_search", "answers are drawn, not searched; use n"),
}

COMPLETIONS: Mapping[str, FieldUse] = {
    **_honoured("model stream temperature top_p stop seed n max_tokens"),
    **_honoured("prompt", "text, token ids, or a list of either; control tokens only as ids"),
    **_honoured("stream_options", "include_usage"),
    **_honoured("frequency_penalty presence_penalty logit_bias logprobs"),
    **_honoured("echo", "with max_tokens 0 the prompt is only scored"),
    **_honoured("include_stop_str_in_output", "as in SamplingParams"),
    **_honoured("so_args", "structured output, as in SamplingParams"),
    **_EXTRAS,
    **_no_effect("user", _LABELS),
    **_refused("suffix", "the model does not fill gaps"),
    **_refused("best_of", "answers are drawn, not searched; use n", 1),
    **_refused("use_beam_search", "answers are drawn, not searched; use n", False),
}

RESPONSES: Mapping[str, FieldUse] = {
    **_honoured("model input instructions stream temperature top_p top_logprobs"),
    **_honoured("max_output_tokens", "thoughts included"),
    **_honoured("text", "format text, json_object, json_schema; enforced"),
    **_honoured("tools", "functions, namespaces, tool_search, apply_patch"),
    **_honoured("tool_choice", "enforced, after the thoughts if there are any"),
    **_honoured("parallel_tool_calls", "false: the answer ends after its first call"),
    **_honoured("reasoning", "effort"),
    **_honoured("seed frequency_penalty presence_penalty logit_bias", "as in chat"),
    **_THINKING,
    **_EXTRAS,
    **_no_effect("user metadata safety_identifier", _LABELS),
    **_no_effect("prompt_cache_key prompt_cache_retention", "equal prefixes are found anyway"),
    **_no_effect("include", "logprobs come with top_logprobs, thoughts always"),
    **_no_effect("stream_options", "nothing is padded"),
    **_no_effect("store", _NOT_KEPT),
    **_refused("previous_response_id conversation", _NOT_KEPT),
    **_refused("background", "answers come on the connection that asked", False),
    **_refused("truncation", "a prompt is never cut silently", "disabled"),
    **_refused("service_tier", _TIER, "auto", "default"),
    **_refused("prompt", "there are no stored prompts; send the text"),
    **_refused("max_tool_calls", "tools are called by the client"),
    **_refused("context_management moderation", "a conversation is taken as it is"),
}

MESSAGES: Mapping[str, FieldUse] = {
    **_honoured("model messages system stream temperature top_p stop_sequences"),
    **_honoured("max_tokens", "thoughts included; may be left out"),
    **_honoured("tools", "of the client"),
    **_honoured("tool_choice", "enforced, any and tool too, after the thoughts if there are any"),
    **_honoured("thinking", "budget_tokens is a limit"),
    **_honoured("output_config", "effort; format json_schema, enforced"),
    **_honoured("seed frequency_penalty presence_penalty logit_bias", "as in chat"),
    **_THINKING,
    **_EXTRAS,
    **_no_effect("metadata", _LABELS),
    **_no_effect("cache_control", "equal prefixes are found anyway"),
    **_no_effect("inference_geo", "it runs where it runs"),
    **_refused("service_tier", _TIER, "auto", "standard_only"),
    **_refused("container mcp_servers", "there are no tools of the server's own"),
    **_refused("context_management", "a conversation is taken as it is"),
    **_refused("output_format", "use output_config.format"),
}

TABLES: Mapping[Api, Mapping[str, FieldUse]] = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
}


def check_fields(api: Api, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are honoured and not null. Raises ApiError (400) naming a field that is not.

    model stays whatever it is.
    """
    table, kept = TABLES[api], {}
    for name, value in body.items():
        use = table.get(name)
        if use is None:
            message = f"Unknown field '{name[:80]}'. docs/server.md lists all fields of this API."
            raise ApiError(400, message, name[:80], "unknown_parameter")
        if use.use == "refused" and value is not None and value not in use.allowed:
            message = f"Unsupported value of '{name}': {use.note}."
            raise ApiError(400, message, name, "unsupported_parameter")
        if use.use == "honoured" and value is not None:
            kept[name] = value
    return kept
