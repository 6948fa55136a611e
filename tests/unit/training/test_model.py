"""The training's forward against the project's network over the reference ops."""

import pytest
import torch
import torch.nn.functional as F

from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.kernels.reference.hyper import hyper_mix
from deepinfer.model.batch import FreshStore, make_batch
from deepinfer.model.draft import DraftStore, draft_batch
from tests.laws.networks import without_round_trips
from tests.unit.training.small import random_ids, small_config, small_network
from training.attention import Mode
from training.draft import run_drafts
from training.kernels import training_kernels
from training.model import index_loss, run_layers, token_loss
from training.sinkhorn import sinkhorn

# Without round trips nothing is rounded apart; a value on a border would move a gradient by 1e-3.
PLAIN = without_round_trips(load_kernels())
TRAINING = training_kernels(quantise_caches=False)
BLOCKS = torch.tensor([4, 4])


def gradients(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in network.named_parameters() if p.grad is not None}


def assert_same_gradients(network: torch.nn.Module, expected: torch.nn.Module) -> None:
    found, wanted = gradients(network), gradients(expected)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        size = float(gradient.abs().max())
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=2e-4 * size + 1e-9, msg=name)


def test_loss_and_gradients_are_the_network_s():
    """What is trained is another model than the one that is shipped: rows see other keys, entries
    are pooled or selected otherwise, a gradient is lost.
    """
    token_ids = random_ids()
    expected, network = small_network(PLAIN), small_network(TRAINING)
    logits = expected(token_ids)
    wanted = F.cross_entropy(logits[:, :-1].flatten(0, 1), token_ids[:, 1:].flatten())
    wanted.backward()
    seen = run_layers(network, token_ids, Mode(select=True))
    loss = token_loss(network, seen.final, token_ids, torch.ones(token_ids.shape))
    loss.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert_same_gradients(network, expected)


def test_the_caches_round_as_in_the_network():
    """Training sees finer caches than the engine has, and export loses what was learned."""
    token_ids = random_ids()
    expected, network = small_network(load_kernels()), small_network(training_kernels())
    with torch.no_grad():
        logits = expected(token_ids)
        final = run_layers(network, token_ids, Mode(select=True)).final
        found = network.head(final).view(logits.shape)
        unrounded = small_network(PLAIN)(token_ids)
    # A value on a border may fall to either side; most positions agree to the last digits.
    assert float((found - logits).abs().median()) < 1e-5
    assert float((unrounded - logits).abs().median()) > 1e-3


def test_selection_and_candidates_restrict():
    """The test above compares forwards that select everything."""
    seen = run_layers(small_network(TRAINING), random_ids(), Mode(select=True))
    for source, chosen in seen.shared.chosen.items():
        assert int(chosen.sum(-1).max()) == small_config().index_topk, source
    ((_, candidates),) = seen.shared.candidates.items()
    assert float(candidates[:, -1].float().mean()) < 0.5


def test_a_dense_forward_attends_to_all_entries():
    """Before the indexers know anything, their selection would hide what must be learned."""
    network, token_ids = small_network(TRAINING), random_ids()
    with torch.no_grad():
        dense = run_layers(network, token_ids, Mode(select=False))
    for source, chosen in dense.shared.chosen.items():
        ratio = network.plans[source].ratio
        assert int(chosen[0, -1].sum()) == token_ids.shape[1] // ratio


def test_index_loss_teaches_the_indexers_alone():
    """The lesson bends attention towards what the indexer finds easy, instead of the reverse; or an
    indexer has no teacher.
    """
    network = small_network(TRAINING)
    seen = run_layers(network, random_ids(), Mode(select=True, lesson_blocks=BLOCKS))
    index_loss(seen.shared).backward()
    names = {name for name, gradient in gradients(network).items() if gradient.abs().max() > 0}
    wanted = {name for name, _ in network.named_parameters() if ".indexer." in name}
    assert names == wanted


def test_index_loss_is_least_where_scores_are_the_attention():
    """The teacher is not attention, or the two are compared over different entries."""
    seen = run_layers(
        small_network(TRAINING), random_ids(), Mode(select=False, lesson_blocks=BLOCKS)
    )
    before = index_loss(seen.shared).item()
    for source, scores in seen.shared.scores.items():
        ideal = seen.shared.mass[source].clamp_min(1e-9).log()
        seen.shared.scores[source] = ideal.masked_fill(scores == -torch.inf, -torch.inf)
    assert index_loss(seen.shared).item() < 1e-4 < before


def test_bounded_replay_hides_the_window_before_the_cut():
    """Replay is trained under another rule than it is served: tokens behind the cut read window
    keys of tokens that the decoder half never ran on.
    """
    network, token_ids = small_network(TRAINING), random_ids(num=1)
    cut = 40
    replay = (torch.arange(token_ids.shape[1]) >= cut).long()[None]
    plain = run_layers(network, token_ids, Mode(select=False)).final
    limited = run_layers(network, token_ids, Mode(select=False), replay).final
    assert torch.equal(limited[:cut], plain[:cut])
    assert not torch.allclose(limited[cut], plain[cut])


def test_drafts_are_those_of_the_draft_module():
    """The draft module is trained at other positions, or on other keys, than it is run with."""
    network, expected, token_ids = small_network(TRAINING), small_network(PLAIN), random_ids(num=2)
    anchors = torch.tensor([[1, 30], [16, 80]])
    with torch.no_grad():
        features = run_layers(network, token_ids, Mode()).features
        found = run_drafts(network, features, token_ids, anchors)
        main_kv = expected.draft.main_kv(
            features, torch.arange(token_ids.shape[1]).repeat(len(token_ids))
        )
        batch = draft_batch(
            small_config(),
            token_ids.gather(1, anchors).flatten(),
            anchors.flatten(),
            torch.tensor([0, 0, 1, 1]) * token_ids.shape[1],
            len(features),
        )
        store = DraftStore(main_kv)
        wanted = expected.draft.run(expected.embed(batch.token_ids), batch, store)
    torch.testing.assert_close(found.flatten(0, 2), wanted, rtol=1e-4, atol=1e-5)


def test_features_are_the_network_s():
    """The draft module is trained on other features than it will get."""
    token_ids = random_ids()
    network, expected = small_network(TRAINING), small_network(PLAIN)
    with torch.no_grad():
        found = run_layers(network, token_ids, Mode()).features
        wanted = expected.run(make_batch(small_config(), token_ids), FreshStore()).features
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_sinkhorn_walks_back_the_way_it_came():
    """The backward, which rebuilds the forward's steps from their sums, drifts from autograd's."""
    generator = torch.Generator().manual_seed(1)
    logits = (2 * torch.randn(50, 4, 4, generator=generator)).requires_grad_()
    weight = torch.randn(50, 4, 4, generator=generator)

    def comb_by_reference() -> torch.Tensor:
        streams, fn = torch.zeros(50, 4, 8), torch.zeros(24, 32)
        base = torch.cat((torch.zeros(50, 8), logits.flatten(1)), 1)
        return torch.stack(
            [
                hyper_mix(s[None], fn, torch.ones(3), b, norm_eps=1e-20, eps=1e-6, num_iters=20)[2]
                for s, b in zip(streams, base, strict=True)
            ]
        )[:, 0]

    wanted = comb_by_reference()
    found = sinkhorn(logits, 1e-6, 20)
    torch.testing.assert_close(found, wanted)
    slopes = [torch.autograd.grad((comb * weight).sum(), logits)[0] for comb in (found, wanted)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-4, atol=1e-6)


def test_kernels_are_a_whole_set():
    """An op is left as the reference has it, which is right, but a hundred times too slow."""
    reference, training = load_kernels(), training_kernels()
    same = {
        name
        for name in KernelSet.__dataclass_fields__
        if getattr(reference, name) is getattr(training, name)
    }
    assert same == {
        "rms_norm",
        "engram_gate",
        "pool_pairs",
        "index_scores",
        "select_entries",
        "candidate_entries",
        "attend",
        "engram_rows",
        "pick",
    }
