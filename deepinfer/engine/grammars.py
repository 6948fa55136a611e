"""Requests whose grammar is being compiled: they wait outside the scheduler until it is there.

Knows futures, requests and tokens. A grammar that cannot be compiled ends its own request and no
other.
"""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

from deepinfer.config.env import Environment
from deepinfer.engine.continuation import PreparedParams
from deepinfer.engine.steering import GrammarState
from deepinfer.errors import RequestError
from deepinfer.scheduler.request import Request
from deepinfer.structured.compile import Compiler
from deepinfer.structured.control_chars import token_text
from deepinfer.structured.library import new_matcher
from deepinfer.tokenizer.tokenizer import Tokenizer

# With nothing else to do, how long a step waits for a grammar, in seconds.
_WAIT_S = 0.05


@dataclass
class _Build:
    requests: list[Request]
    future: Future[Any]


class Grammars:
    """What is being compiled, by request id and in order of arrival.

    new_compiler: called for the first grammar, because it loads a library and starts processes.
    """

    def __init__(self, new_compiler: Callable[[], Compiler], vocab_size: int) -> None:
        self._new_compiler, self._vocab_size = new_compiler, vocab_size
        self._compiler: Compiler | None = None
        self._builds: dict[str, _Build] = {}

    def __bool__(self) -> bool:
        return bool(self._builds)

    def close(self) -> None:
        """End the compiler's processes."""
        if self._compiler is not None:
            self._compiler.close()
            self._compiler = None

    def add(self, request_id: str, requests: list[Request], text: str) -> None:
        """Keep the request's continuations until their grammar, EBNF text, is compiled."""
        if self._compiler is None:
            self._compiler = self._new_compiler()
        self._builds[request_id] = _Build(requests, self._compiler.submit(text))

    def drop(self, request_id: str, choice: int) -> None:
        """Forget a continuation; compiling goes on, for whoever asks for the same grammar."""
        build = self._builds.get(request_id)
        if build is not None:
            build.requests = [r for r in build.requests if r.request_id != (request_id, choice)]
            if not build.requests:
                del self._builds[request_id]

    def take(self, *, may_wait: bool) -> Iterator[tuple[list[Request], Any, RequestError | None]]:
        """(continuations, compiled grammar, None) or (continuations, None, why there is none).

        Of all that is done by now. may_wait: nobody else needs the time, so wait a moment.
        """
        if may_wait and self._builds:
            wait([b.future for b in self._builds.values()], _WAIT_S, FIRST_COMPLETED)
        for request_id, build in list(self._builds.items()):
            if not build.future.done():
                continue
            del self._builds[request_id]
            error = build.future.exception()
            if error is None:
                yield build.requests, build.future.result(), None
            elif isinstance(error, RequestError):
                yield build.requests, None, error
            else:
                raise error

    def start(self, compiled: Any, prepared: PreparedParams) -> GrammarState:
        """A continuation's own state of a compiled grammar."""
        so_args = prepared.so_args
        assert so_args is not None
        return GrammarState(
            new_matcher(compiled),
            prepared.end_ids.tolist(),
            self._vocab_size,
            so_args.trigger_token_ids,
            so_args.bound_token_id,
        )


def new_compiler(tokenizer: Tokenizer, vocab_size: int, seen: Environment) -> Compiler:
    """A compiler of grammars for the model's tokens."""
    spellings = {token_id: spelling for spelling, token_id in tokenizer.control_ids.items()}
    return Compiler(
        [
            token_text(spellings.get(token_id), tokenizer.token_bytes(token_id))
            for token_id in range(vocab_size)
        ],
        sorted(tokenizer.eos_ids),
        vocab_size,
        num_workers=seen.grammar_workers,
        timeout_s=seen.grammar_timeout_s,
        cache_bytes=seen.grammar_cache_bytes if seen.grammar_cache_bytes > 0 else sys.maxsize,
    )
