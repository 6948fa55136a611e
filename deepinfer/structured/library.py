"""xgrammar: the one module that imports it, inside functions, so that all else works without it.

Grammar texts to compiled grammars, and these to masks. Knows neither time limits nor requests.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.errors import RequestError

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher

FIELD = "so_args.schema"
# xgrammar's messages begin with the time and a line of its own source.
_WHERE = re.compile(r"^\[[0-9:]+\] \S+:\d+: ")
SIMPLER = "simplify the schema or grammar: fewer alternatives, smaller counts, less nesting"


@dataclass(frozen=True)
class TokenTable:
    """What masks need to know of a tokenizer.

    vocab: the bytes of each token; b"" for control tokens, which then never match as text (D16),
    and for unused ids. vocab_size: how many logits there are, at least len(vocab).
    """

    vocab: list[bytes]
    stop_token_ids: list[int]
    vocab_size: int


def load_xgrammar() -> Any:
    """The library. Raises RequestError if it is not installed."""
    try:
        import xgrammar  # here: it takes seconds, and may be missing
    except ImportError as error:
        what = f"structured output needs xgrammar: {error}"
        hint = "pip install 'deepinfer[structured]'"
        raise RequestError(what, field="so_args", hint=hint) from None
    return xgrammar


def new_grammar_compiler(table: TokenTable) -> "GrammarCompiler":
    """xgrammar's compiler for these tokens, which makes masks when they are first needed."""
    xgrammar = load_xgrammar()
    info = xgrammar.TokenizerInfo(
        table.vocab,
        xgrammar.VocabType.RAW,
        vocab_size=table.vocab_size,
        stop_token_ids=table.stop_token_ids,
    )
    compiler: GrammarCompiler = xgrammar.GrammarCompiler(
        info, max_threads=1, cache_enabled=False, enable_dynamic_compilation=True
    )
    return compiler


def compile_text(compiler: "GrammarCompiler", text: str) -> "CompiledGrammar":
    """The grammar, compiled. Raises RequestError for what xgrammar refuses."""
    xgrammar = load_xgrammar()
    try:
        return compiler.compile_grammar(xgrammar.Grammar.from_ebnf(text))
    except (RuntimeError, ValueError) as error:
        raise refused(f"it was refused: {_WHERE.sub('', str(error)).strip()}") from None


def new_matcher(compiled: "CompiledGrammar") -> "GrammarMatcher":
    """A matcher at the beginning of the grammar. Any number of them, in several threads."""
    matcher: GrammarMatcher = load_xgrammar().GrammarMatcher(compiled)
    return matcher


def fill_mask(matcher: "GrammarMatcher", row: np.ndarray[Any, np.dtype[np.int32]]) -> None:
    """Write into `row` which tokens may come next: bit i % 32 of row[i // 32] is token i.

    row: int32, contiguous, ceil(vocab_size / 32) of them; bits beyond vocab_size mean nothing. The
    stop tokens may come where the grammar may end. Other threads run meanwhile.
    """
    matcher.fill_next_token_bitmask(row.reshape(1, -1))


def refused(what: str) -> RequestError:
    """The error for a text that xgrammar does not take, or that is of no use."""
    return RequestError(what, field=FIELD, hint=SIMPLER)
