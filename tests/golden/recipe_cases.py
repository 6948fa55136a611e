"""The recorded cases of the recipe: requests, conversations, prompts, outputs and events.

They were recorded from the released recipe. They are the judge and are never made anew to fit. They
are kept packed, unchanged.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "recipe" / "cases.jsonl.xz"


@cache
def _all_cases() -> tuple[dict[str, Any], ...]:
    # Not splitlines: U+2028 stands unescaped in some records.
    lines = lzma.decompress(CASES.read_bytes()).decode().split("\n")
    return tuple(json.loads(line) for line in lines if line)


def cases(kind: str, protocol: str | None = None) -> list[dict[str, Any]]:
    """The records of a kind ("prompt" for those that name none), of one protocol if asked."""
    found = [
        case
        for case in _all_cases()
        if case.get("kind", "prompt") == kind and protocol in (None, case.get("protocol"))
    ]
    assert found, f"no case of kind {kind}, protocol {protocol}"
    return found
