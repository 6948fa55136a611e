"""Bounds of sampling values, and what becomes of them."""

import pytest

from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.sampling_rules import (
    RULES,
    Asked,
    check_sampling,
    check_stops,
    settled_temperature,
    settled_top_p,
)


def refused(**values):
    with pytest.raises(ConversionError) as caught:
        check_sampling(Asked(max_tokens_bound=10, **values))
    return caught.value.field


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("temperature", (0.0, 2.0), (-0.1, 2.1, float("inf"))),
        ("top_p", (1e-9, 1.0), (0.0, 1.1)),
        ("max_tokens", (1, 10), (0, 11)),
        ("seed", (0, 2**63 - 1), (2**63,)),
        ("n", (1,), (0, 2)),
        ("frequency_penalty", (-2.0, 2.0), (-2.1, 2.1)),
        ("presence_penalty", (-2.0, 2.0), (-2.1, 2.1)),
    ],
)
def test_bounds(field, good, bad):
    """A value just outside its range is sampled with, or one just inside is refused."""
    for value in good:
        check_sampling(Asked(max_tokens_bound=10, **{field: value}))
    for value in bad:
        assert refused(**{field: value}) == field


def test_top_logprobs_want_logprobs():
    """Logprobs are asked for in a way that gives none, and nobody says so."""
    assert refused(top_logprobs=0) == "top_logprobs"
    assert refused(top_logprobs=21, logprobs=True) == "top_logprobs"
    check_sampling(Asked(top_logprobs=20, logprobs=True))


def test_rules_can_be_left_out():
    """Being more lenient means writing the rules a second time."""
    lenient = [rule for rule in RULES if rule.field != "n"]
    check_sampling(Asked(n=5), lenient)
    with pytest.raises(ConversionError):
        check_sampling(Asked(n=5, temperature=3.0), lenient)


def test_stops():
    """An empty stop string ends every answer at once."""
    assert check_stops(None) == ()
    assert check_stops("x") == ("x",)
    assert check_stops(["a", "b"]) == ("a", "b")
    for stops in ("", ["a", ""], ["a"] * 17):
        with pytest.raises(ConversionError):
            check_stops(stops)


def test_temperature():
    """Thinking is sampled at another temperature than the model was trained for."""
    assert settled_temperature(0.3, thinking=True) == 1.0
    assert settled_temperature(0.3, thinking=False) == 0.3
    assert settled_temperature(None, thinking=False) == 1.0


@pytest.mark.parametrize(
    ("version", "thinking", "has_tools", "asked", "top_p"),
    [
        ("v4", True, True, 0.2, 0.95),
        ("v4", True, False, 0.2, 1.0),
        ("v4", False, True, 0.2, 0.2),
        ("v4", False, False, None, 1.0),
        ("v4.1", True, False, 0.2, 0.95),
        ("v4.1", True, False, 0.97, 0.97),
        ("v4.1", True, True, None, 1.0),
        ("v4.1", False, True, 0.2, 1.0),
    ],
)
def test_top_p(version, thinking, has_tools, asked, top_p):
    """An answer is sampled from more, or fewer, tokens than the recipe of its version says."""
    found = settled_top_p(asked, version, thinking=thinking, has_tools=has_tools)
    assert found == pytest.approx(top_p, abs=1e-6)
