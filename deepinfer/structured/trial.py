"""Whether a grammar works: compile it, then write with it what comes to mind.

Runs in a process of its own (compile_child.py), because some grammars compile at once but take
minutes for a mask. Knows tokens and masks. Does not know who asks.
"""

import random
import signal
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np

from deepinfer.errors import RequestError
from deepinfer.structured.library import (
    TokenTable,
    compile_text,
    fill_mask,
    new_grammar_compiler,
    new_matcher,
)

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler

NUM_WALKS = 4
MAX_TOKENS = 16
# The walks end after this time, and a grammar is refused if one mask alone takes the second one;
# both in seconds of the processor.
TRIAL_S = 1.0
MAX_MASK_S = 1.0
# The process ends itself so long after it should have been ended.
_ALARM_MARGIN_S = 10.0


def main(handle: int) -> None:
    """The life of the process: the tokens, then one text after another, until the pipe closes."""
    pipe = Connection(handle)
    try:
        table = pipe.recv()
        compiler = new_grammar_compiler(table)
        pipe.send(None)
        while True:
            signal.setitimer(signal.ITIMER_REAL, 0)
            text, timeout_s = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, timeout_s + _ALARM_MARGIN_S)
            pipe.send(fault(compiler, table, text))
    except (EOFError, OSError):
        return


def fault(compiler: "GrammarCompiler", table: TokenTable, text: str) -> str | None:
    """What is wrong with the grammar, None if nothing was found. May take any time.

    Random tokens are chosen from the masks in a few walks through the grammar, the end last of all.
    """
    try:
        compiled = compile_text(compiler, text)
    except RequestError as error:
        return error.what
    end = time.process_time() + TRIAL_S
    for seed in range(NUM_WALKS):
        found = _walk(compiled, table, random.Random(seed), end)
        if found is not None:
            return found
    return None


def _walk(
    compiled: "CompiledGrammar", table: TokenTable, dice: random.Random, end: float
) -> str | None:
    matcher = new_matcher(compiled)
    row = np.zeros(-(-table.vocab_size // 32), np.int32)
    for _ in range(MAX_TOKENS):
        start = time.process_time()
        if start > end:
            break
        fill_mask(matcher, row)
        if time.process_time() - start > MAX_MASK_S:
            return f"one mask of allowed tokens takes more than {MAX_MASK_S:g} s"
        allowed = _allowed(row, table)
        going_on = allowed[~np.isin(allowed, table.stop_token_ids)]
        if not len(allowed):
            return "it comes to a place where no token can follow"
        if not len(going_on):
            break
        token_id = int(dice.choice(going_on))
        if not matcher.accept_token(token_id):
            return f"a mask allows token {token_id}, which cannot follow"
    return None


def _allowed(row: np.ndarray[Any, np.dtype[np.int32]], table: TokenTable) -> np.ndarray[Any, Any]:
    """Ids of the tokens that the mask allows."""
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: table.vocab_size]
    return np.flatnonzero(bits)
