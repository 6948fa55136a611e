"""The bodies of Responses and Messages, as JSON schemas for /openapi.json. Only data.

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
    PENALTIES,
    SCHEMA,
    SEED,
    STREAM,
    TEMPERATURE,
    THINKING,
    THINKING_BUDGET,
    TOP_LOGPROBS,
    TOP_P,
    Schema,
    either,
    flag,
    listed,
    number,
    only,
    record,
    text,
    words,
)

_TEXT_BLOCK = record("type text", {"type": only("text"), "text": text()})
_CONTENT = either(text(), listed(_TEXT_BLOCK, minItems=1))
_FLAT_FUNCTION = record("type name", {"type": only("function"), **FUNCTION})
_INPUT_TEXT = record("type text", {"type": words("input_text output_text"), "text": text()})
RESPONSES: Schema = record(
    "input",
    {
        "model": MODEL,
        "input": either(
            text(),
            listed(
                either(
                    record(
                        "role content",
                        {
                            "type": only("message"),
                            "role": words("user assistant system developer"),
                            "content": either(text(), listed(_INPUT_TEXT, minItems=1)),
                        },
                    ),
                    record(
                        "type call_id name arguments",
                        {
                            "type": only("function_call"),
                            "call_id": text(),
                            "name": FUNCTION["name"],
                            "arguments": text(),
                        },
                    ),
                    record(
                        "type call_id output",
                        {"type": only("function_call_output"), "call_id": text(), "output": text()},
                    ),
                ),
                minItems=1,
            ),
        ),
        "instructions": text("The first system message."),
        "stream": STREAM,
        "max_output_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "top_logprobs": TOP_LOGPROBS,
        "text": record(
            "",
            {
                "format": either(
                    record("type", {"type": words("text json_object")}),
                    record(
                        "type name schema",
                        {
                            "type": only("json_schema"),
                            "name": text(),
                            "schema": SCHEMA,
                            "strict": flag(),
                        },
                    ),
                )
            },
        ),
        "tools": listed(_FLAT_FUNCTION),
        "tool_choice": either(
            words("auto none required"),
            record("type name", {"type": only("function"), "name": FUNCTION["name"]}),
        ),
        "parallel_tool_calls": flag("false: the answer ends after its first call."),
        "reasoning": record("", {"effort": EFFORT}),
        "thinking_budget": THINKING_BUDGET,
        "seed": SEED,
        "logit_bias": LOGIT_BIAS,
        **PENALTIES,
        **EXTRAS,
        "user": text(),
        "metadata": LABELS,
        "store": flag(),
    },
)

_RESULT = record(
    "type tool_use_id",
    {"type": only("tool_result"), "tool_use_id": text(), "content": _CONTENT, "is_error": flag()},
)
_USE = record(
    "type id name input",
    {
        "type": only("tool_use"),
        "id": text(),
        "name": FUNCTION["name"],
        "input": {"type": "object"},
    },
)
_THOUGHT = record("type thinking", {"type": only("thinking"), "thinking": text()})
MESSAGES: Schema = record(
    "messages",
    {
        "model": MODEL,
        "messages": listed(
            either(
                record(
                    "role content",
                    {
                        "role": only("user"),
                        "content": either(text(), listed(either(_TEXT_BLOCK, _RESULT), minItems=1)),
                    },
                ),
                record(
                    "role content",
                    {
                        "role": only("assistant"),
                        "content": either(
                            text(), listed(either(_THOUGHT, _TEXT_BLOCK, _USE), minItems=1)
                        ),
                    },
                ),
            ),
            minItems=1,
        ),
        "system": either(text(), listed(_TEXT_BLOCK)),
        "stream": STREAM,
        "max_tokens": MAX_TOKENS,
        "temperature": number(0, 1, "0 takes the likeliest token; default 1."),
        "top_p": TOP_P,
        "stop_sequences": listed({"type": "string", "minLength": 1}, maxItems=16),
        "tools": listed(
            record(
                "name input_schema",
                {"name": FUNCTION["name"], "description": text(), "input_schema": SCHEMA},
            )
        ),
        "tool_choice": either(
            record("type", {"type": words("auto any none"), "disable_parallel_tool_use": flag()}),
            record("type name", {"type": only("tool"), "name": FUNCTION["name"]}),
        ),
        "thinking": THINKING,
        "thinking_budget": THINKING_BUDGET,
        "output_config": record(
            "",
            {
                "effort": EFFORT,
                "format": record("type schema", {"type": only("json_schema"), "schema": SCHEMA}),
            },
        ),
        "seed": SEED,
        "logit_bias": LOGIT_BIAS,
        **PENALTIES,
        **EXTRAS,
        "metadata": record("", {"user_id": text()}),
    },
)
