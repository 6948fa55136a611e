"""The draft module's rows and its sequential part, by hand (spec 11.3, 21.3)."""

import torch

from deepinfer.kernels.backends import load_kernels
from deepinfer.model.basic import Setup
from deepinfer.model.draft import Draft, DraftStore, draft_batch


def one_anchor(config, anchor, num_main_rows):
    first_rows = torch.zeros(1, dtype=torch.int64)
    return draft_batch(
        config, torch.tensor([77]), torch.tensor([anchor]), first_rows, num_main_rows
    )


def test_worked_example(released_config):
    """Guards spec 21.3: golden token at 102; keys 0..101 and the block; positions 102..106."""
    batch = one_anchor(released_config, 102, num_main_rows=104)
    noise = released_config.dspark_noise_token_id
    assert batch.token_ids.tolist() == [77, noise, noise, noise, noise]
    assert batch.positions.tolist() == [102, 103, 104, 105, 106]
    block = [104, 105, 106, 107, 108]
    for index in batch.window_index.tolist():
        assert [row for row in index if row >= 0] == [*range(102), *block]


def test_window_before_the_anchor(released_config):
    """Guards against 127: the 128 main tokens before the anchor, which are not the anchor's own."""
    batch = one_anchor(released_config, 1000, num_main_rows=1000)
    index = batch.window_index[4].tolist()
    assert index == [*range(872, 1000), *range(1000, 1005)]


def test_two_sequences(tiny_config):
    """Guards batches: each anchor sees its own sequence's rows and its own block."""
    batch = draft_batch(
        tiny_config,
        golden_ids=torch.tensor([7, 8]),
        anchors=torch.tensor([2, 3]),
        first_rows=torch.tensor([0, 10]),
        num_main_rows=20,
    )
    seen = [[row for row in index if row >= 0] for index in batch.window_index.tolist()]
    assert seen[:5] == [[0, 1, 20, 21, 22, 23, 24]] * 5
    assert seen[5:] == [[10, 11, 12, 25, 26, 27, 28, 29]] * 5
    assert batch.sequence_ids.tolist() == [0] * 5 + [1] * 5
    assert [rows.tolist() for rows in batch.groups] == [[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]]


def test_store():
    """Guards the order in the store that the indices above count on: main rows, then drafts."""
    store = DraftStore({0: torch.zeros(2, 1), 1: torch.full((2, 1), 3.0)})
    assert store.window(1, torch.ones(1, 1)).flatten().tolist() == [3, 3, 1]


def test_each_draft_hangs_on_the_one_before(tiny_config):
    """Guards the Markov chain: draft i is picked from logits that know draft i - 1, no other."""
    torch.manual_seed(0)
    setup = Setup(tiny_config, load_kernels(), torch.float32, torch.float32)
    module = Draft(setup)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        hidden = torch.randn(2, 3, tiny_config.hidden_size)
        weight = torch.randn(tiny_config.vocab_size, tiny_config.hidden_size)

        def head(x: torch.Tensor) -> torch.Tensor:
            return x @ weight.T

        asked = []

        def pick(logits: torch.Tensor, i: int) -> torch.Tensor:
            asked.append(i)
            return torch.tensor([20 + i, 40 + i])

        proposal = module.propose(hidden, torch.tensor([5, 6]), head, pick)
        base = head(module.norm(hidden))
        before = torch.tensor([[5, 20, 21], [6, 40, 41]])
        transition = module.markov_head.embed.weight[before] @ module.markov_head.head.weight.T
        proj = module.confidence_head.proj.weight[0]
        confidence = torch.cat((hidden, module.markov_head.embed.weight[before]), -1) @ proj
    assert asked == [0, 1, 2]
    assert proposal.token_ids.tolist() == [[20, 21, 22], [40, 41, 42]]
    torch.testing.assert_close(proposal.logits, base + transition, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(proposal.confidence, confidence, rtol=1e-5, atol=1e-4)
