"""A headless Chromium that a test drives, by the DevTools protocol over two pipes.

Needs no package: a message is JSON and a zero byte. Without a Chromium, `browser` skips the test.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Chromium talks over descriptors 3 and 4, whatever ours are.
_MOVE = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """A tab. Events are kept in `said`: what its console and its policy complained of."""

    def __init__(self, reads: Any, writes: Any) -> None:
        self._reads, self._writes = reads, writes
        self._number = 0
        self._tab: str | None = None
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser; its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._tab is not None:
            message["sessionId"] = self._tab
        self._writes.write(json.dumps(message).encode() + b"\0")
        self._writes.flush()
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found["error"]
                return found["result"]

    def run(self, script: str) -> Any:
        """What an expression gives; a promise is waited for."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, url: str) -> None:
        """Load a page; what the one before had to say is forgotten."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank' && document.readyState === 'complete'")
        self.said.clear()
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def until(self, script: str, limit_s: float = 20) -> Any:
        """Wait until an expression is true; its value."""
        end = time.monotonic() + limit_s
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}\n{self.said}"
            time.sleep(0.05)
        return found

    def type(self, text: str) -> None:
        """Text into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, by its name and its number."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size and colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def save(self, file: Path) -> None:
        """A picture of the window."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        data = bytearray()
        while (byte := self._reads.read(1)) != b"\0":
            assert byte, "the browser has ended"
            data += byte
        found: dict[str, Any] = json.loads(data)
        if found.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
            self.said.append(json.dumps(found["params"]))
        return found


def chromium() -> str | None:
    """Where it is."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a new browser, which keeps its things in `folder`; skips without a Chromium."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    its_in, our_out = os.pipe()
    our_in, its_out = os.pipe()
    options = [
        "--headless=new",
        "--no-sandbox",  # a test may run as root
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--no-proxy-server",
        f"--user-data-dir={folder}",
        "--remote-debugging-pipe",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", _MOVE, str(its_in), str(its_out), program, *options],
        pass_fds=(its_in, its_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(its_in)
    os.close(its_out)
    try:
        with os.fdopen(our_in, "rb") as reads, os.fdopen(our_out, "wb") as writes:
            yield Page(reads, writes)
    finally:
        # Its pipes are closed, and with them it ends.
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
