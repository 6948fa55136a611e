"""One request through the engine, against whole forwards of the same network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deepinfer.checkpoint.tiny import tiny_config, write_tiny
from deepinfer.config.engine import EngineArgs
from deepinfer.engine.loading import LoadedModel, load_model
from deepinfer.errors import RequestError
from deepinfer.kernels.reference.noise import row_key
from deepinfer.kernels.reference.pick import pick
from deepinfer.messages import Delta
from deepinfer.sampling.draw import draw
from deepinfer.sampling_params import SamplingParams
from tests.laws.engines import assert_empty

GREEDY = SamplingParams(temperature=0, max_tokens=8)
SCORED = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=True)


def random_ids(length: int) -> list[int]:
    """The same on every machine, control tokens among them."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(512, (length,), generator=generator).tolist()


def news_of(model: LoadedModel, prompt: list[int], params: SamplingParams) -> Iterator[Delta]:
    """Everything the engine tells of a request that runs alone, step by step."""
    assert not model.engine.has_work
    model.engine.submit("alone", prompt, params)
    while model.engine.has_work:
        yield from model.engine.step()


def generate(model: LoadedModel, prompt: list[int], params: SamplingParams) -> list[int]:
    """Its tokens."""
    return [d.token_id for d in news_of(model, prompt, params) if d.token_id is not None]


def prompt_logprobs(model: LoadedModel, prompt: list[int]) -> list[float]:
    """Those of every token but the first."""
    return [one.logprob for d in news_of(model, prompt, SCORED) for one in d.prompt_logprobs]


@torch.inference_mode()
def whole_logits(model: LoadedModel, token_ids: list[int]) -> Tensor:
    """One forward over all: float32 [S, vocab]."""
    return model.engine.worker.network(torch.tensor([token_ids]))[0]


@contextmanager
def swapped_head(model: LoadedModel, first: int, second: int) -> Iterator[None]:
    """Two tokens with each other's logits, while the context lasts."""
    weight = model.engine.worker.network.head.weight
    with torch.no_grad():
        weight[[first, second]] = weight[[second, first]]
    try:
        yield
    finally:
        with torch.no_grad():
            weight[[first, second]] = weight[[second, first]]


@pytest.mark.parametrize("length", [1, 40, 512, 513, 600])
def test_greedy_equals_whole_forwards(length: int, loaded: LoadedModel) -> None:
    """A02: a prompt in chunks, then token by token, gives other tokens than the whole at once."""
    prompt = random_ids(length)
    tokens = generate(loaded, prompt, GREEDY)
    assert len(tokens) == 8
    logits = whole_logits(loaded, prompt + tokens)
    assert tokens == logits[length - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("length", [5, 600])
def test_drawn_tokens_equal_whole_forwards(length: int, loaded: LoadedModel) -> None:
    """The noise of a token comes from something else than seed, choice 0 and its own position."""
    prompt, seed = random_ids(length), 2**63 + 5
    params = SamplingParams(temperature=1.2, top_k=60, top_p=0.95, seed=seed, max_tokens=10)
    tokens = generate(loaded, prompt, params)
    position = torch.arange(length, length + 10)
    key = row_key(torch.full_like(position, seed - 2**64), torch.zeros_like(position), position)
    logits = whole_logits(loaded, prompt + tokens)[length - 1 : -1]
    expected = draw(logits, key, temperature=1.2, top_k=60, top_p=0.95, pick=pick)
    assert tokens == expected.tolist()


def test_rows_are_computed_once_and_in_chunks(
    either: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt takes memory for all its rows at once, or is computed again at each token."""
    network, rows = either.engine.worker.network, []
    run = network.run

    def counted(batch, store, rest):
        rows.append(batch.token_ids.shape[0])
        return run(batch, store, rest)

    monkeypatch.setattr(network, "run", counted)
    generate(either, random_ids(1100), replace(GREEDY, max_tokens=3))
    assert rows == [512, 512, 76, 1, 1]
    rows.clear()
    prompt_logprobs(either, random_ids(1024))
    assert rows == [512, 512]


@pytest.mark.parametrize("length", [2, 3, 40, 512, 513, 600, 1025])
def test_prompt_logprobs_equal_a_whole_forward(length: int, loaded: LoadedModel) -> None:
    """C12, C13: log-probabilities are shifted by one, or wrong where two chunks meet."""
    ids = random_ids(length)
    found = torch.tensor(prompt_logprobs(loaded, ids))
    logprobs = whole_logits(loaded, ids).log_softmax(-1)
    expected = logprobs[torch.arange(length - 1), torch.tensor(ids[1:])]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert (found < 0).all()


def test_prompt_logprobs_of_one_token(either: LoadedModel) -> None:
    """The first token has nothing before it, and its absence ends in an error."""
    assert prompt_logprobs(either, [7]) == []


def test_same_seed_same_tokens(loaded: LoadedModel) -> None:
    """F04: two runs with one seed differ, or a seed depends on how it is spelled."""
    prompt = random_ids(9)

    def tokens(seed: int) -> list[int]:
        return generate(loaded, prompt, SamplingParams(seed=seed, max_tokens=4))

    found = [tokens(seed) for seed in (3, -1, 4)]
    assert [tokens(3), tokens(2**64 - 1)] == found[:2]
    assert len(set(map(tuple, found))) == 3


def test_no_seed_is_not_a_constant(loaded: LoadedModel) -> None:
    """C16: without a seed every run gives the same text."""
    found = {
        tuple(generate(loaded, [5, 6], SamplingParams(temperature=5.0, max_tokens=12)))
        for _ in range(3)
    }
    assert len(found) > 1  # by chance once in 10**50


def test_greedy_does_not_ask_the_seed(loaded: LoadedModel) -> None:
    """F06: temperature 0 depends on the seed, or on the filters."""
    prompt = random_ids(9)
    expected = generate(loaded, prompt, GREEDY)
    for seed in (None, 1):
        assert generate(loaded, prompt, replace(GREEDY, seed=seed)) == expected
    filtered = replace(GREEDY, temperature=1e-6, top_k=3, top_p=0.5, seed=1)
    assert generate(loaded, prompt, filtered) == expected


def test_top_k_of_one_is_greedy(loaded: LoadedModel) -> None:
    """The likeliest token alone takes part, and yet another is drawn."""
    prompt = random_ids(9)
    expected = generate(loaded, prompt, GREEDY)
    for params in (SamplingParams(top_k=1, seed=5), SamplingParams(top_p=1e-9, seed=6)):
        assert generate(loaded, prompt, replace(params, max_tokens=8)) == expected


@pytest.mark.parametrize("max_tokens", [1, 2, 7])
def test_max_tokens(max_tokens: int, either: LoadedModel) -> None:
    """K08: one token too many or too few, or the first tokens depend on the limit."""
    params = replace(GREEDY, max_tokens=max_tokens)
    long = generate(either, [3, 4], GREEDY)
    assert generate(either, [3, 4], params) == long[:max_tokens]


@pytest.mark.parametrize(("length", "expected"), [(1, 3), (298, 2), (299, 1)])
def test_the_end_of_the_context(length: int, expected: int, tmp_path: Path) -> None:
    """I04: the last position that the checkpoint allows cannot be computed, or the one after it is
    fatal.
    """
    write_tiny(tmp_path, config=tiny_config(max_position_embeddings=300))
    model = load_model(str(tmp_path), EngineArgs(device="cpu", dtype="float32"))
    assert model.options.max_model_len == 300
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    *_, last = news_of(model, [3] * length, params)
    assert last.finish_reason == "length"
    assert len(generate(model, [3] * length, params)) == expected


@pytest.mark.parametrize("place", [0, 1, 4])
def test_end_token_ends(place: int, either: LoadedModel) -> None:
    """The end token is passed over, is left out of the ids, or comes with one token more."""
    eos_id = either.tokenizer.eos_id
    tokens = generate(either, random_ids(6), GREEDY)
    assert tokens.index(tokens[place]) == place
    assert eos_id not in tokens
    with swapped_head(either, eos_id, tokens[place]):
        found = generate(either, random_ids(6), GREEDY)
        assert found == [*tokens[:place], eos_id]
        ignored = generate(either, random_ids(6), replace(GREEDY, ignore_eos=True))
    assert ignored[: place + 1] == found
    assert len(ignored) == 8


def test_tokens_come_one_by_one(loaded: LoadedModel) -> None:
    """A reader waits for the last token before it sees the first."""
    loaded.engine.submit("alone", [3, 4], replace(GREEDY, max_tokens=3))
    steps = [[d.token_id for d in loaded.engine.step()] for _ in range(3)]
    assert [len(tokens) for tokens in steps] == [1, 1, 1]
    assert not loaded.engine.has_work
    assert loaded.engine.step() == []


def test_prompt_is_left_alone(loaded: LoadedModel) -> None:
    """The caller's list grows by what was generated."""
    prompt = [3, 4, 5]
    generate(loaded, prompt, GREEDY)
    assert prompt == [3, 4, 5]


def test_requests_do_not_see_each_other(either: LoadedModel) -> None:
    """F02: a request that runs beside others, or after them, gets other tokens."""
    prompts = {name: random_ids(length) for name, length in (("a", 5), ("b", 300), ("c", 40))}
    params = SamplingParams(seed=4, max_tokens=5)
    alone = {name: generate(either, prompt, params) for name, prompt in prompts.items()}
    for name, prompt in prompts.items():
        either.engine.submit(name, prompt, params)
    together: dict[str, list[int]] = {name: [] for name in prompts}
    while either.engine.has_work:
        for delta in either.engine.step():
            together[delta.request_id].append(delta.token_id)
    assert together == alone


def test_abort(either: LoadedModel) -> None:
    """K04: an aborted request goes on, or keeps its memory."""
    free = either.engine.scheduler.counters
    either.engine.submit("gone", random_ids(40), replace(GREEDY, n=2))
    either.engine.submit("stays", [3, 4], GREEDY)
    either.engine.step()
    either.engine.abort("gone")
    either.engine.abort("gone")
    either.engine.abort("never there")
    tokens = []
    while either.engine.has_work:
        news = either.engine.step()
        assert {delta.request_id for delta in news} == {"stays"}
        tokens += [delta.token_id for delta in news]
    assert tokens == generate(either, [3, 4], GREEDY)[1:]
    assert either.engine.scheduler.counters == free


@pytest.mark.parametrize("place", ["launch", "start_sample"])
def test_a_step_that_fails(
    place: str, either: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K04: after a step that was interrupted, or ran out of memory, no other can run."""
    engine, expected = either.engine, generate(either, [3, 4], GREEDY)
    engine.submit("broken", random_ids(40), GREEDY)

    def fail(plan: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(engine.worker, place, fail)
        with pytest.raises(MemoryError):
            engine.step()
    engine.abort("broken")
    assert_empty(engine)
    assert generate(either, [3, 4], GREEDY) == expected


def test_choices_of_one_request(either: LoadedModel) -> None:
    """One of several continuations is given up, and takes the others or the prompt's scores along;
    or the prompt is scored for each of them."""
    params = replace(SCORED, n=3, max_tokens=4, temperature=1.0, seed=7)
    whole = list(news_of(either, [3, 4, 5], params))
    assert sum(len(delta.prompt_logprobs) for delta in whole) == 2
    tokens = [[d.token_id for d in whole if d.choice == c and d.token_id] for c in range(3)]
    either.engine.submit("it", [3, 4, 5], params)
    news = either.engine.step()
    either.engine.finish("it", 1, "stop")
    either.engine.finish("it", 1, "stop")
    while either.engine.has_work:
        news += either.engine.step()
    found = [[d.token_id for d in news if d.choice == c and d.token_id] for c in range(3)]
    assert found == [tokens[0], tokens[1][:1], tokens[2]]


def test_refused_requests_leave_nothing(either: LoadedModel) -> None:
    """K04: a prompt that does not fit is refused with some of its continuations added."""
    free, limit = either.engine.scheduler.counters, either.engine.scheduler.config.max_model_len
    for prompt in ([], [3] * limit):
        with pytest.raises(RequestError) as caught:
            either.engine.submit("it", prompt, replace(GREEDY, n=3))
        assert caught.value.field == "prompt"
        assert not either.engine.has_work
        assert either.engine.scheduler.counters == free
    either.engine.submit("it", [3, 4], GREEDY)
    with pytest.raises(RequestError) as caught:
        either.engine.submit("it", [5, 6], GREEDY)
    assert caught.value.field == "request_id"
    tokens = []
    while either.engine.has_work:
        tokens += [delta.token_id for delta in either.engine.step()]
    assert tokens == generate(either, [3, 4], GREEDY)
