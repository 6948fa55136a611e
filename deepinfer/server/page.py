"""The page at /: one file, and the headers that let it do what it does and nothing else.

The policy names the page's own style and script by their hashes: were anything else ever to get
into the page, an answer of a model for one, no browser would run it. Knows no route.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("page.html")


@dataclass(frozen=True, slots=True)
class Page:
    """What is sent. headers: (name, value), names in lower case."""

    body: bytes
    headers: tuple[tuple[str, str], ...]


@cache
def page() -> Page:
    """The page; read once."""
    text = _FILE.read_text(encoding="utf-8")
    return Page(
        text.encode(),
        (
            ("content-type", "text/html; charset=utf-8"),
            ("content-security-policy", policy(text)),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            # Another version of the server has another page.
            ("cache-control", "no-cache"),
        ),
    )


def policy(text: str) -> str:
    """The Content-Security-Policy of a page: its own script and style, requests to its own server.

    `data:` is for the empty icon, which keeps browsers from asking for one.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(text, 'script')}",
            f"style-src {_hashes(text, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _hashes(text: str, tag: str) -> str:
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(one.encode()).digest()) for one in found)
    return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)
