"""Strict tools that may be called: whether there is a call is the model's choice, but a call that
it makes obeys its schema.

Knows what grammars look like as text. Does not know requests or tokens.
"""

from deepinfer.errors import RequestError
from deepinfer.recipe.request import ConversationRequest
from deepinfer.so_args import SoArgs
from deepinfer.structured.output_grammar import output_grammar

_ROOT = "root ::= "
# As many characters as there may be, none of which stands for a control token: so a block of calls
# begins nowhere but in the rule for it.
_FREE = r"[^\ud800-\udfff\U00100000-\U0010ffff]*"


def wants_strict_calls(request: ConversationRequest) -> bool:
    """Its tools may be called, and are strict."""
    conversation = request.conversation
    return conversation.has_tools and all(tool.strict is True for tool in conversation.tools)


def optional_calls(tools_json: str) -> tuple[SoArgs, str]:
    """(what the answer obeys, as parameters; the grammar): any text, and calls of the tools after
    it or none.

    tools_json: as SoArgs has it for tool_calls. Raises RequestError naming the tool.
    """
    so_args = SoArgs("tool_calls", tools_json)
    calls = output_grammar(so_args)
    if not calls.startswith(_ROOT):
        raise RequestError(
            "these tools cannot be held to their schemas", field="tools", hint="leave out strict"
        )
    root = f"{_ROOT}free | free calls\nfree ::= {_FREE}\n"
    return so_args, f"{root}calls ::= {calls.removeprefix(_ROOT)}"
