"""Grammars for engines that are made by hand: four kinds, compiled once for all engines."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any

from deepinfer.config.env import environment
from deepinfer.engine.engine import Engine
from deepinfer.engine.grammars import Grammars, new_compiler
from deepinfer.so_args import read_so_args
from deepinfer.structured.compile import Compiler
from deepinfer.structured.output_grammar import output_grammar
from tests.laws.ahead import Small, around

TOOLS = [{"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}]
SO_ARGS: list[dict[str, Any]] = [
    {
        "schema_type": "json",
        "schema": {
            "type": "object",
            "properties": {"id": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
            "required": ["id", "ok"],
        },
        "whitespace": "none",
    },
    {"schema_type": "regex", "schema": "(ab|cd){2,4}"},
    {"schema_type": "ebnf", "schema": 'root ::= ("x" | "yz" root) "." '},
    {"schema_type": "tool_calls", "schema": json.dumps(TOOLS)},
]


class InPlace:
    """In a compiler's place: compiles without another process, so that grammars are there at once.

    It outlives the engines that use it.
    """

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler

    @cache  # noqa: B019 (lives as long as the tests of a file)
    def submit(self, text: str) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self._compiler._compile(text))
        return future

    def close(self) -> None:
        """Nothing: another engine may come."""


@contextmanager
def compiled(small: Small) -> Iterator[Callable[[], Grammars]]:
    """A function that makes grammars for an engine."""
    vocab_size = small.source.config.vocab_size
    compiler = new_compiler(small.tokenizer, vocab_size, environment())
    in_place: Any = InPlace(compiler)
    try:
        yield lambda: Grammars(lambda: in_place, vocab_size)
    finally:
        compiler.close()


def grammar_of(so_args: Any) -> str | None:
    """The grammar that a request asks for, if it does."""
    read = read_so_args(so_args)
    return None if read is None else output_grammar(read)


def reading_so_args(engine: Engine) -> Engine:
    """`submit` reads the grammar in the parameters, as an LLM would."""

    def submit(inner: Any, request_id: str, prompt: Sequence[int], params: Any) -> None:
        inner(request_id, prompt, params, None, grammar_of(params.so_args))

    around(engine, "submit", submit)
    return engine
