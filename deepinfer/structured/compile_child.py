"""Another process that compiles grammar texts and tries them out; it can be stopped at any time.

Knows processes. Does not know grammars (trial.py is what runs there), nor what to tell a user.

The process is a fresh interpreter, which does not run the program's main module again, and a
program that is itself a daemon process may start it. It ends when this process does: its
connection is closed then, and while it computes, an alarm of the system ends it.
"""

import pickle
import subprocess
import sys
from multiprocessing import Pipe

# Loading a library, on a busy machine.
START_S = 120
_PROGRAM = """
import signal, sys
signal.alarm({start_s})
sys.path[:] = {path!r}
from deepinfer.structured.trial import main
main({handle})
"""


class TimedOut(Exception):
    """No answer within the time."""


class Died(Exception):
    """The process ended without an answer."""


class Child:
    """The process. Starts at once, but has to load for seconds before it answers.

    table: what `trial.main` needs first. `ask` is for one thread; `kill` may come from any. Raises
    OSError if the system has no more processes or files to give.
    """

    def __init__(self, table: object) -> None:
        self._table: object | None = table
        self._pipe, theirs = Pipe()
        program = _PROGRAM.format(start_s=START_S, path=sys.path, handle=theirs.fileno())
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            process_group=0,  # Ctrl-C is for the program, which ends this one in its own way
        )
        theirs.close()

    def ask(self, text: str, timeout_s: float) -> str | None:
        """None if `text` compiles and works, else why not.

        timeout_s: counted from when the process has begun with this text. Raises TimedOut or Died;
        after either, the process is of no more use.
        """
        try:
            if self._table is not None:
                self._pipe.send(self._table)
                self._receive(START_S)
                self._table = None
            self._pipe.send((text, timeout_s))
            said = self._receive(timeout_s)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise Died(f"its process ended with {self._exit_code()}") from None
        return None if said is None else str(said)

    def kill(self) -> None:
        """End the process and wait until it is gone. Repeatable."""
        self._process.kill()
        self._process.wait()

    def _receive(self, timeout_s: float) -> object:
        if not self._pipe.poll(timeout_s):
            raise TimedOut
        return self._pipe.recv()

    def _exit_code(self) -> int | None:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None
