"""Law: the network is the oracle, for every input. And the places where others went wrong.

The oracle recomputes everything from the model specification and shares no code with the network.
Caches round nothing here, because a rounding that is near a tie may go either way in two right
implementations; the golden numbers judge the roundings.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from deepinfer.model.network import Network
from deepinfer.oracle.model import Oracle
from tests.golden.goldens import assert_close
from tests.laws.margins import CLEAR, smallest_margin
from tests.laws.networks import run_draft, run_recorded, run_whole

TOLERANCE = 1e-4


def tokens(length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 500, (length,), generator=generator)


def error(network: Network, oracle: Oracle, token_ids: torch.Tensor) -> torch.Tensor:
    """The largest error of the logits at each position: [S]."""
    expected = oracle.forward(token_ids.tolist()).logits
    return (run_whole(network, token_ids[None])[0] - expected).abs().amax(-1)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 511), min_size=1, max_size=70))
def test_network_is_the_oracle(exact, exact_oracle, ids):
    """Guards any input: any tokens, control tokens among them, of any number."""
    token_ids = torch.tensor(ids)
    assume(smallest_margin(exact, token_ids) > CLEAR)
    assert error(exact, exact_oracle, token_ids).max() < TOLERANCE


@settings(max_examples=10, deadline=None, derandomize=True)
@given(ids=st.lists(st.integers(0, 511), min_size=1, max_size=40), data=st.data())
def test_draft_is_the_oracle(exact, exact_oracle, ids, data):
    """Guards drafting at any anchor, also one that has less than a window before it."""
    anchor = data.draw(st.integers(1, len(ids)))
    golden_id = data.draw(st.integers(0, 511))
    features = run_recorded(exact, torch.tensor(ids)).hidden.features
    expected = exact_oracle.draft(features, anchor, golden_id)
    forced = torch.tensor(expected.token_ids)  # else a tie of two tokens could lead apart
    where, golden_ids = torch.tensor([anchor]), torch.tensor([golden_id])
    actual = run_draft(exact, features, where, golden_ids, lambda _, i: forced[i : i + 1])
    logits = expected.base_logits + expected.transition_logits
    assert_close(actual.tensors["raw"][0], expected.raw, TOLERANCE)
    assert_close(actual.proposal.logits[0], logits, TOLERANCE)
    assert_close(actual.proposal.confidence[0], expected.confidence_raw, TOLERANCE)


@pytest.mark.parametrize("length", range(1, 41))
def test_every_length(exact, exact_oracle, length):
    """Guards the first entries: lengths around each multiple of the ratio. A01."""
    assert error(exact, exact_oracle, tokens(length)).max() < TOLERANCE


@pytest.mark.parametrize("decoder_start", [1, 17, 38, 59, 60])
def test_replay_is_the_oracles(exact, exact_oracle, decoder_start):
    """Guards bounded replay: the layer it begins in, the first position, rows without windows."""
    token_ids = tokens(60)
    expected = exact_oracle.forward(token_ids.tolist(), decoder_start).logits
    found = run_whole(exact, token_ids[None], decoder_start)[0]
    assert_close(found, expected, TOLERANCE)
    assert (found - run_whole(exact, token_ids[None])[0]).abs().max() > 0.1


@pytest.mark.parametrize("topk", [4, 8])
def test_topk_is_the_configured_one(with_topk, topk):
    """Guards against a second source of the value, which short prompts would hide. A05."""
    network, oracle = with_topk(topk)
    assert error(network, oracle, tokens(100)).max() < TOLERANCE


def test_topk_matters(with_topk):
    """Guards the test above: the two settings give different logits, so it can tell them apart."""
    four, eight = (run_whole(with_topk(topk)[0], tokens(100)[None])[0] for topk in (4, 8))
    difference = (four - eight).abs().amax(-1)
    assert difference[:4].max() < TOLERANCE
    assert difference[-1] > 0.1


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("topk", [4, 8])
def test_where_selection_begins(with_topk, topk, ratio):
    """Guards the switch from all entries to the best: no step in the error there. A06."""
    network, oracle = with_topk(topk)
    switch = topk * ratio
    for length in (switch - 1, switch, switch + 1, switch + 2, 2 * switch):
        assert error(network, oracle, tokens(length, seed=1)).max() < TOLERANCE


def test_selection_of_all_is_no_selection(with_topk):
    """Guards the same switch from the other side: dense and sparse agree until one is cut. A06."""
    token_ids = tokens(40, seed=2)[None]
    sparse, dense = (run_whole(with_topk(topk)[0], token_ids)[0] for topk in (8, 1000))
    difference = (sparse - dense).abs().amax(-1)
    assert difference[:8].max() < TOLERANCE  # ratio 1 has at most 8 entries here
    assert difference[8] > TOLERANCE  # and the ninth is the first to be cut


def test_error_does_not_grow(exact, exact_oracle):
    """Guards long contexts: a path that only matters late would show as growing error. A09."""
    errors = error(exact, exact_oracle, tokens(160, seed=3))
    assert errors.max() < TOLERANCE
    first = errors[:32].median()
    for start in (32, 64, 96, 128):
        assert errors[start : start + 32].median() < 3 * first
