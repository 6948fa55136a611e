"""Servers in processes of their own, as a user starts them, for tests that are their clients."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEMO = Path(__file__).parents[2] / "models" / "demo"
_START = """
import sys
import typer
from deepinfer.server.command import serve
app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command()(serve)
app()
"""
_URL = re.compile(r"is served at (http://\S+)")


class ServerProcess:
    """A server. Attributes: `url` once it is ready, `lines` of its log so far, `process`."""

    def __init__(self, *options: str, environ: dict[str, str] | None = None) -> None:
        self.url = ""
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        )
        self._told = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self, most_s: float = 90) -> None:
        """Until its address is known; fails with the log if it ends first."""
        assert self._told.wait(most_s) and self.url, "\n".join(self.lines)

    def log(self) -> str:
        """All lines so far."""
        return "\n".join(self.lines)

    def end(self, sig: int = signal.SIGTERM, most_s: float = 20) -> int:
        """Ask it to end; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(most_s)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        self._reader.join(5)
        return code

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if match := _URL.search(line):
                self.url = match[1]
                self._told.set()
        self._told.set()


@contextmanager
def serving(
    model: Path, *options: str, environ: dict[str, str] | None = None
) -> Iterator[ServerProcess]:
    """A server of a model on a free port, ready; ended at the end."""
    server = ServerProcess(str(model), "--port", "0", *options, environ=environ)
    try:
        server.wait_ready()
        yield server
    finally:
        server.end()
