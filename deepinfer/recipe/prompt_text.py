"""The fixed texts of prompts, as templates and tables (spec recipe 4).

A field in braces is a control token if `SpecialTokens` has one of that name, a word of the tool
markup if `MARKUP_WORDS` has it, and otherwise a value that whoever fills the template passes.
Knows no conversation.
"""

from collections.abc import Mapping

from deepinfer.recipe.conversation import Effort, Version

# The words behind the DSML token. A leading space belongs to the word: it makes other tokens.
MARKUP_WORDS: Mapping[Version, Mapping[str, str]] = {
    "v4": {"calls": "tool_calls", "invoke": "invoke", "parameter": "parameter"},
    "v4.1": {"calls": " calls", "invoke": " invoke", "parameter": " parameter"},
}

CALLS_START = "\n\n<{dsml}{calls}>\n"
CALLS_END = "</{dsml}{calls}>"
INVOKE_START = '<{dsml}{invoke} name="{name}">\n'
INVOKE_END = "</{dsml}{invoke}>\n"
PARAMETER = '<{dsml}{parameter} name="{key}" string="{is_string}">{value}</{dsml}{parameter}>'

TOOL_RESULT_START = "<tool_result>"
TOOL_RESULT_END = "</tool_result>"

TOOLS_START = """

## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<{dsml}{calls}>" block like the following:

<{dsml}{calls}>
<{dsml}{invoke} name="$TOOL_NAME">
<{dsml}{parameter} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}{parameter}>
...
</{dsml}{invoke}>
<{dsml}{invoke} name="$TOOL_NAME2">
...
</{dsml}{invoke}>
</{dsml}{calls}>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), \
pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {thinking_start}), \
you MUST output your complete reasoning inside {thinking_start}...{thinking_end} \
BEFORE any tool calls or final response.

Otherwise, output directly after {thinking_end} with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_END = """
You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
ADDED_TOOLS = "\n\n### Updated Tool Schemas\n\n"

_FORMAT = "## Response Format:\n\n"
SCHEMA_FORMAT = (
    f"\n\n{_FORMAT}You MUST strictly adhere to the following schema to reply:\n{{schema}}"
)
# V4.1 writes this schema where V4 has a text of its own.
ANY_OBJECT_SCHEMA = {"type": "json_object"}
JSON_OBJECT_V4 = (
    "\n\nYou are a helpful assistant designed to output JSON.\n"
    f"{_FORMAT}Reply with JSON object ONLY."
)

_HIGH_V4 = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n"
)
_MAX_V4 = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple "
    "angles and are certain that no assumption remains unchecked and no error remains "
    "undiscovered.\n\n"
)
_LEVEL_V41 = (
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)
DEFAULT_EFFORT: Effort = "high"
EFFORT: Mapping[Version, Mapping[Effort, str]] = {
    "v4": {"low": "", "high": _HIGH_V4, "xhigh": _HIGH_V4, "max": _MAX_V4},
    "v4.1": {
        "low": _LEVEL_V41.format(50),
        "high": _LEVEL_V41.format(75),
        "xhigh": _LEVEL_V41.format(75),
        "max": _LEVEL_V41.format(100),
    },
}
