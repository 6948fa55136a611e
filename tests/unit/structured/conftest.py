"""The judge of grammars, for all files of this folder."""

import pytest

from tests.unit.structured.judge import Judge


@pytest.fixture(scope="module")
def judge() -> Judge:
    """xgrammar, for a small vocabulary."""
    pytest.importorskip("xgrammar")
    return Judge()
