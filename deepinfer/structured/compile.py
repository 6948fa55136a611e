"""Grammar texts become compiled grammars, off the caller's thread, each within its time.

Does not know what a grammar is for, nor requests.

Some texts compile at once and then take minutes for their first masks, and a thread that computes
cannot be stopped. So a text goes to another process first, which compiles it and tries it out: see
trial.py. If that ends well in time, we compile the text ourselves, which takes
milliseconds, as masks are made when they are first needed.
"""

import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from importlib.util import find_spec
from typing import TYPE_CHECKING

from deepinfer.errors import RequestError
from deepinfer.structured.compile_child import Child, Died, TimedOut
from deepinfer.structured.library import (
    FIELD,
    TokenTable,
    compile_text,
    load_xgrammar,
    new_grammar_compiler,
    refused,
)

if TYPE_CHECKING:
    from xgrammar import CompiledGrammar, GrammarCompiler

_MOST_REFUSED = 256


class Compiler:
    """Compiles grammar texts for one tokenizer.

    vocab, stop_token_ids, vocab_size: see TokenTable. num_workers: texts that are tried out at a
    time, each in a process of its own, which starts when it is first needed. timeout_s: what one
    text may take there. cache_bytes: what is kept of compiled grammars that were used before; the
    one used last is kept whatever its size.
    """

    def __init__(
        self,
        vocab: list[bytes],
        stop_token_ids: Sequence[int],
        vocab_size: int,
        *,
        num_workers: int = 2,
        timeout_s: float = 20.0,
        cache_bytes: int = 1 << 30,
    ) -> None:
        self._table = TokenTable(list(vocab), list(stop_token_ids), vocab_size)
        self._timeout_s, self._cache_bytes = timeout_s, cache_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._own_lock = threading.Lock()
        self._own: GrammarCompiler | None = None
        self._cache: OrderedDict[str, CompiledGrammar] = OrderedDict()
        # So that a client who sends the same bad text again does not take a worker each time.
        self._refused: OrderedDict[str, RequestError] = OrderedDict()
        self._in_flight: dict[str, Future[CompiledGrammar]] = {}
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._children: list[Child | None] = [None] * num_workers
        self._threads = [
            threading.Thread(target=self._work, args=(place,), name=f"grammar-{place}", daemon=True)
            for place in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, text: str) -> "Future[CompiledGrammar]":
        """The compiled grammar, at once if it is in the cache. The future cannot be cancelled.

        Its exception is a RequestError if xgrammar is missing or refuses the text, if the text
        takes too long or takes down the process that tries it, or after `close`.
        """
        with self._lock:
            future = self._in_flight.get(text)
            if future is not None:
                return future
            future = Future()
            future.set_running_or_notify_cancel()
            if self._closed:
                future.set_exception(_closed())
            elif text in self._refused:
                future.set_exception(self._refused[text])
            elif text in self._cache:
                self._cache.move_to_end(text)
                self._trim()
                future.set_result(self._cache[text])
            else:
                self._in_flight[text] = future
                self._texts.put(text)
            return future

    def close(self) -> None:
        """End all processes and threads. What was not finished gets a RequestError. Repeatable."""
        with self._lock:
            self._closed = True
            for child in self._children:
                if child is not None:
                    child.kill()
        for _ in self._threads:
            self._texts.put(None)
        for thread in self._threads:
            thread.join()
        with self._lock:
            self._cache.clear()

    def _work(self, place: int) -> None:
        """A thread's life: one text after another, until None comes."""
        while (text := self._texts.get()) is not None:
            result: CompiledGrammar | RequestError = refused("a fault of this program")
            try:
                self._try_out(place, text)
                result = self._compile(text)
            except RequestError as error:
                result = error
            except OSError as error:
                result = refused(f"no process to compile it: {error}")
            finally:  # whatever happens, somebody waits for an answer
                self._finish(text, result)
        child = self._children[place]
        if child is not None:
            child.kill()

    def _try_out(self, place: int, text: str) -> None:
        """Raise RequestError unless another process compiles and uses `text` in time."""
        child = self._child(place)
        load_xgrammar()  # while the other process does the same
        try:
            fault = child.ask(text, self._timeout_s)
        except (TimedOut, Died) as error:
            self._children[place] = None
            child.kill()
            raise self._ended(error) from None
        if fault is not None:
            raise refused(fault)

    def _child(self, place: int) -> Child:
        if find_spec("xgrammar") is None:
            load_xgrammar()  # raises
        with self._lock:
            if self._closed:
                raise _closed()
            child = self._children[place]
            if child is None:
                child = self._children[place] = Child(self._table)
            return child

    def _ended(self, error: TimedOut | Died) -> RequestError:
        if self._closed:
            return _closed()
        if isinstance(error, TimedOut):
            return refused(f"compiling took longer than {self._timeout_s:g} s")
        return refused(f"compiling failed: {error}")

    def _compile(self, text: str) -> "CompiledGrammar":
        with self._own_lock:
            if self._own is None:
                self._own = new_grammar_compiler(self._table)
            return compile_text(self._own, text)

    def _finish(self, text: str, result: "CompiledGrammar | RequestError") -> None:
        with self._lock:
            future = self._in_flight.pop(text)
            if isinstance(result, RequestError):
                future.set_exception(result)
                if not self._closed:
                    self._refused[text] = result
                    if len(self._refused) > _MOST_REFUSED:
                        self._refused.popitem(last=False)
                return
            self._cache[text] = result
            self._trim()
        future.set_result(result)

    def _trim(self) -> None:
        """Forget what was not used for longest. Sizes are measured anew: masks have been added."""
        sizes = {text: 2 * len(text) + one.memory_size_bytes for text, one in self._cache.items()}
        total = sum(sizes.values())
        while total > self._cache_bytes and len(self._cache) > 1:
            text, _ = self._cache.popitem(last=False)
            total -= sizes[text]


def _closed() -> RequestError:
    return RequestError("the engine is stopping", field=FIELD, hint="ask another engine")
