"""The bodies of Chat Completions and Completions, as JSON schemas for /openapi.json. Only data.

A test holds the names here and those of fields.py together.
"""

from deepinfer.server.openapi_parts import (
    EFFORT,
    EXTRAS,
    FUNCTION,
    LABELS,
    LOGIT_BIAS,
    MAX_TOKENS,
    MODEL,
    MOST,
    PENALTIES,
    SCHEMA,
    SEED,
    STOP,
    STREAM,
    STREAM_OPTIONS,
    TEMPERATURE,
    THINKING,
    THINKING_BUDGET,
    TOP_LOGPROBS,
    TOP_P,
    Schema,
    either,
    flag,
    listed,
    only,
    record,
    text,
    whole,
    words,
)

_TEXT_BLOCK = record("type text", {"type": only("text"), "text": text()})
_CONTENT = either(text(), listed(_TEXT_BLOCK, minItems=1))
_CHAT_CALL = record(
    "id type function",
    {
        "id": text(),
        "type": only("function"),
        "function": record("name arguments", {"name": FUNCTION["name"], "arguments": text()}),
    },
)
_NAMED = record("name", {"name": FUNCTION["name"]})

CHAT: Schema = record(
    "messages",
    {
        "model": MODEL,
        "messages": listed(
            either(
                record(
                    "role content", {"role": words("system developer user"), "content": _CONTENT}
                ),
                record(
                    "role",
                    {
                        "role": only("assistant"),
                        "content": _CONTENT,
                        "reasoning_content": text(),
                        "tool_calls": listed(_CHAT_CALL),
                        "prefix": flag("The answer goes on with this last message."),
                    },
                ),
                record(
                    "role content tool_call_id",
                    {"role": only("tool"), "content": _CONTENT, "tool_call_id": text()},
                ),
            ),
            minItems=1,
        ),
        "stream": STREAM,
        "stream_options": STREAM_OPTIONS,
        "n": whole(1, 1024, "How many answers."),
        "max_tokens": MAX_TOKENS,
        "max_completion_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        **PENALTIES,
        "stop": STOP,
        "seed": SEED,
        "logit_bias": LOGIT_BIAS,
        "logprobs": flag("Show each token's log-probability."),
        "top_logprobs": TOP_LOGPROBS,
        "response_format": either(
            record("type", {"type": words("text json_object")}),
            record(
                "type json_schema",
                {
                    "type": only("json_schema"),
                    "json_schema": record(
                        "schema", {"name": text(), "schema": SCHEMA, "strict": flag()}
                    ),
                },
            ),
            record("type regex", {"type": only("regex"), "regex": text()}),
        ),
        "tools": listed(
            record(
                "type function", {"type": only("function"), "function": record("name", FUNCTION)}
            )
        ),
        "tool_choice": either(
            words("auto none required"),
            record("type function", {"type": only("function"), "function": _NAMED}),
        ),
        "parallel_tool_calls": flag("false: the answer ends after its first call."),
        "reasoning_effort": EFFORT,
        "thinking": THINKING,
        "thinking_budget": THINKING_BUDGET,
        **EXTRAS,
        "user": text(),
        "metadata": LABELS,
    },
)

_IDS = listed(whole(0, MOST), minItems=1)
COMPLETIONS: Schema = record(
    "prompt",
    {
        "model": MODEL,
        "prompt": either(text(), listed(text(), minItems=1), _IDS, listed(_IDS, minItems=1)),
        "stream": STREAM,
        "stream_options": STREAM_OPTIONS,
        "n": whole(1, 1024, "How many answers to each prompt."),
        "max_tokens": whole(0, MOST, "Default 16; 0 only with echo."),
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        **PENALTIES,
        "stop": STOP,
        "seed": SEED,
        "logit_bias": LOGIT_BIAS,
        "logprobs": TOP_LOGPROBS,
        "echo": flag("The answer begins with the prompt."),
        "include_stop_str_in_output": flag(),
        "so_args": record(
            "schema_type",
            {
                "schema_type": words("json json_object regex ebnf tool_calls open_tool_calls"),
                "schema": either(text(), SCHEMA),
                "whitespace": words("bounded none"),
                "trigger_token_ids": _IDS,
                "bound_token_id": whole(0, MOST),
            },
            "Structured output; docs/structured_output.md.",
        ),
        **EXTRAS,
        "user": text(),
    },
)
