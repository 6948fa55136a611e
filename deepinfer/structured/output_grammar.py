"""`SoArgs` -> the text of the grammar that the output must match. The entry to this package.

Refuses here, before anything is scheduled, whatever could not be enforced.
"""

from functools import lru_cache

from deepinfer.errors import RequestError
from deepinfer.so_args import SoArgs
from deepinfer.structured import ebnf
from deepinfer.structured.automaton import TooManyStates, is_empty
from deepinfer.structured.control_chars import plain
from deepinfer.structured.grammar import EMPTY, Chars, Grammar
from deepinfer.structured.grammar_check import check
from deepinfer.structured.grammar_write import dfa_rules, write
from deepinfer.structured.prune import pruned
from deepinfer.structured.regex import RegexError, full_dfa
from deepinfer.structured.schema import ANY_OBJECT, schema_grammar
from deepinfer.structured.tool_grammar import tool_grammar

_FIELD = "so_args.schema"


def output_grammar(so_args: SoArgs) -> str:
    """EBNF text for xgrammar. Raises RequestError naming the place, the reason and a way out."""
    return _written(so_args.schema_type, so_args.schema, so_args.whitespace)


# Clients send the same schema again and again.
@lru_cache(maxsize=256)
def _written(kind: str, schema: str, whitespace: str) -> str:
    if kind in ("tool_calls", "open_tool_calls"):
        grammar = tool_grammar(schema, _FIELD, is_open=kind == "open_tool_calls")
    elif kind == "regex":
        grammar = _spellable(_regex_grammar(schema))
    elif kind == "ebnf":
        grammar = plain(ebnf.read(schema, _FIELD))
    else:
        wanted = schema if kind == "json" and schema.strip() else ANY_OBJECT
        grammar = _spellable(schema_grammar(wanted, field=_FIELD, whitespace=whitespace))
    check(grammar, _FIELD)
    return write(grammar)


def _spellable(grammar: Grammar) -> Grammar:
    """The grammar without what needs characters that stand for control tokens."""
    kept = pruned(plain(grammar))
    if kept is None:
        what = "all that fits it has private characters of Unicode's plane 16"
        hint = "they stand for control tokens here; use other characters"
        raise RequestError(what, field=_FIELD, hint=hint)
    return kept


def _regex_grammar(pattern: str) -> Grammar:
    try:
        dfa = full_dfa(pattern)
    except RegexError as error:
        what = f"{error.what}, at character {error.position}"
        raise RequestError(what, field=_FIELD, hint=error.hint) from None
    except TooManyStates:
        hint = "use smaller counts, or a grammar (schema_type ebnf)"
        raise RequestError("it has too many cases", field=_FIELD, hint=hint) from None
    if is_empty(dfa):
        hint = "look for parts that contradict each other"
        raise RequestError("no text matches it", field=_FIELD, hint=hint)
    return Grammar(dfa_rules("s", dfa, Chars, EMPTY), "s0")
