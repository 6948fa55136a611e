"""Compiling in another process: the cache, the clock, and what happens when things end badly."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from deepinfer.errors import RequestError
from deepinfer.structured import compile as compile_module
from deepinfer.structured import trial
from deepinfer.structured.compile import Compiler
from deepinfer.structured.compile_child import Child, Died, TimedOut
from deepinfer.structured.library import load_xgrammar
from tests.unit.structured.languages import BYTES, STOP, allowed, byte_compiler, matcher_of

DIGIT = "root ::= [0-9]\n"


class FakeChild:
    """Stands for the process: answers at once, with what the text says."""

    started: list["FakeChild"]

    def __init__(self, table):
        self.killed = threading.Event()
        FakeChild.started.append(self)

    def ask(self, text, timeout_s):
        if "slow" in text:
            if self.killed.wait(timeout_s):
                raise Died("its process ended with -9")
            raise TimedOut
        if "crash" in text:
            raise Died("its process ended with -11")
        if "broken" in text:
            raise ZeroDivisionError
        return "no good" if "bad" in text else None

    def kill(self):
        self.killed.set()


@pytest.fixture
def compiler(monkeypatch):
    byte_compiler()
    FakeChild.started = []
    monkeypatch.setattr(compile_module, "Child", FakeChild)
    made = []

    def make(**options):
        made.append(Compiler(BYTES.vocab, BYTES.stop_token_ids, BYTES.vocab_size, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
    assert all(child.killed.is_set() for child in FakeChild.started)


def said(future) -> str:
    error = future.exception(timeout=30)
    assert isinstance(error, RequestError), error
    return error.what


def named(name: str) -> str:
    return f'root ::= {name}\n{name} ::= "x"\n'


def test_a_text_becomes_a_grammar_that_makes_masks(compiler):
    """The end is allowed too early, or a control token passes as text (D16)."""
    matcher = matcher_of(compiler().submit('root ::= "ab" | "a"\n').result(30))
    assert allowed(matcher) == {ord("a")}
    assert matcher.accept_token(ord("a"))
    assert allowed(matcher) == {ord("b"), STOP}


def test_equal_texts_are_compiled_once(compiler):
    """A hundred requests with the same schema compile it a hundred times."""
    one = compiler(num_workers=1)
    first = [one.submit(named("slow")), one.submit(named("slow"))]
    assert first[0] is first[1]
    done = one.submit(DIGIT).result(30) if one.close() else None
    assert done is None and said(first[0])
    two = compiler()
    assert two.submit(DIGIT).result(30) is two.submit(DIGIT).result(30)


def test_the_cache_keeps_to_its_budget(compiler):
    """Memory grows with every request that brings its own schema (E11)."""
    one = compiler(cache_bytes=20_000, num_workers=1)
    for number in range(300):
        one.submit(f'root ::= "{number}" [a-z]+\n').result(30)
    sizes = [2 * len(text) + kept.memory_size_bytes for text, kept in one._cache.items()]
    assert 1 < len(sizes) < 299 and sum(sizes) <= 20_000
    kept = one.submit('root ::= "299" [a-z]+\n')
    assert kept.done()
    assert not one.submit('root ::= "0" [a-z]+\n').done() or len(one._cache) <= len(sizes) + 1


def test_masks_that_were_added_count_in_the_cache(compiler):
    """A grammar grows while it is used, and the cache counts its first size for ever (E11)."""
    one = compiler(cache_bytes=1 << 30, num_workers=1)
    text = 'root ::= "a" root | [b-y] root | [α-ω] root "x" | "z"\n'
    grown, other = one.submit(text).result(30), one.submit(DIGIT).result(30)
    before = grown.memory_size_bytes
    matcher = matcher_of(grown)
    for byte in b"abzx":
        allowed(matcher)
        matcher.accept_token(byte)
    assert grown.memory_size_bytes > before
    one._cache_bytes = before + other.memory_size_bytes + 2 * len(text + DIGIT)
    one.submit(DIGIT)
    assert list(one._cache) == [DIGIT]


def test_each_kind_of_failure_ends_its_own_request_only(compiler):
    """A failed compile leaves its request waiting for ever, or takes the engine down (E08, E09)."""
    one = compiler(num_workers=1, timeout_s=0.2)
    futures = [one.submit(named(name)) for name in ("bad", "slow", "crash")]
    futures += [one.submit("root ::= (\n"), one.submit(DIGIT)]
    assert said(futures[0]) == "no good"
    assert said(futures[1]) == "compiling took longer than 0.2 s"
    assert "ended with -11" in said(futures[2])
    assert "it was refused: EBNF" in said(futures[3])
    assert futures[4].result(30)
    assert len(FakeChild.started) == 3  # a new one after each that was lost
    assert not one._in_flight


def test_a_fault_of_our_own_answers_too(compiler, monkeypatch):
    """An error that nobody expected leaves the request waiting for ever (E09)."""
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    assert "fault of this program" in said(compiler(num_workers=1).submit(named("broken")))


def test_closing_answers_all_that_wait(compiler):
    """The engine ends while a client waits for its grammar, and the client hangs."""
    one = compiler(num_workers=1, timeout_s=60)
    futures = [one.submit(named("slow")), one.submit(DIGIT)]
    start = time.monotonic()
    one.close()
    one.close()
    futures.append(one.submit(DIGIT))
    assert all("stopping" in said(future) for future in futures)
    assert time.monotonic() - start < 5


def test_a_waiting_request_cannot_take_the_grammar_from_others(compiler):
    """One of two clients with the same schema goes away, and the other gets a cancelled answer."""
    one = compiler(num_workers=1)
    assert not one.submit(DIGIT).cancel()
    assert one.submit(DIGIT).result(30)


def test_without_xgrammar_the_error_says_what_to_install(compiler, monkeypatch):
    """A missing extra shows as a ModuleNotFoundError in the middle of a request."""
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(RequestError) as caught:
        load_xgrammar()
    assert caught.value.field == "so_args"
    assert "deepinfer[structured]" in caught.value.hint
    monkeypatch.setattr(compile_module, "find_spec", lambda name: None)
    assert "needs xgrammar" in said(compiler().submit(DIGIT))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('root ::= [a-z]{1,300} ("." | ",")\n', None),
        ('root ::= "a" root | ""\n', None),
        ("root ::= x\n", "not defined"),
        ('root ::= "a" []\n', "no token can follow"),
    ],
)
def test_the_trial_finds_what_compiling_does_not(text, fault):
    """A grammar that compiles but leads nowhere is scheduled, and its request never ends (E12)."""
    found = trial.fault(byte_compiler(), BYTES, text)
    assert (found is None) if fault is None else (fault in found)


def test_a_grammar_with_slow_masks_is_refused():
    """A grammar that compiles at once takes seconds for each token, for all requests (E10)."""
    chain = "".join(f'r{i} ::= "a" r{i + 1} | r{i + 1}\n' for i in range(1500))
    text = f'root ::= r0\n{chain}r1500 ::= ""\n'
    assert "one mask" in str(trial.fault(byte_compiler(), BYTES, text))


@pytest.mark.slow
@pytest.mark.sample
def test_real_processes_answer_time_out_and_end():
    """The process for trials hangs, dies unnoticed, or is left behind (E10)."""
    pytest.importorskip("xgrammar")
    compiler = Compiler(BYTES.vocab, BYTES.stop_token_ids, BYTES.vocab_size, num_workers=1)
    assert compiler.submit(DIGIT).result(120)
    child = compiler._children[0]
    assert child is not None
    assert "not defined" in said(compiler.submit("root ::= x\n"))
    os.kill(child._process.pid, signal.SIGSEGV)
    assert "ended with -11" in said(compiler.submit('root ::= "s"\n'))
    assert compiler.submit('root ::= "t"\n').result(120)
    child = compiler._children[0]
    assert child is not None
    compiler._timeout_s = 0.5
    os.kill(child._process.pid, signal.SIGSTOP)
    assert said(compiler.submit('root ::= "u"\n')) == "compiling took longer than 0.5 s"
    assert child._process.returncode == -signal.SIGKILL
    hidden = compiler.submit('root ::= "v"\n')
    compiler.close()
    assert hidden.done()
    with pytest.raises(ChildProcessError):
        os.waitpid(child._process.pid, 0)


@pytest.mark.slow
def test_the_process_ends_with_the_one_that_started_it():
    """A killed engine leaves processes behind that hold memory for ever."""
    pytest.importorskip("xgrammar")
    program = (
        f"import os, sys; sys.path[:] = {sys.path!r}\n"
        "from deepinfer.structured.library import TokenTable\n"
        "from deepinfer.structured.compile_child import Child\n"
        "child = Child(TokenTable([b'a', b''], [1], 2))\n"
        "assert child.ask('root ::= \"a\"', 60) is None\n"
        "print(child._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(pid, 9)
    pytest.fail("the process is still there")


def test_a_child_that_is_dropped_leaves_no_open_files():
    """Each killed process costs two open files, until there are no more."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        child = Child(BYTES)
        child.kill()
        with pytest.raises(Died):
            child.ask(DIGIT, 1)
        del child
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
