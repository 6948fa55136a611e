"""Faults of asynchronous stepping that users of such engines have reported, one by one.

Log-probabilities, ids, grammars, penalties and stops. What is compared with is an engine that goes
step by step without drafts. Preemption and needless steps have files of their own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from deepinfer.engine.grammars import Grammars
from deepinfer.sampling_params import SamplingParams
from tests.laws.ahead import (
    Make,
    Small,
    around,
    by_chance,
    engines,
    in_turn,
    jobs_of,
    make_small,
    poison_after_calls,
    recorded,
)
from tests.laws.ahead_grammars import SO_ARGS, compiled, reading_so_args
from tests.laws.drafters import answers_of, play, with_drafter
from tests.laws.engines import Job, make_engine, run_jobs, run_watched
from tests.laws.networks import run_whole
from tests.laws.test_engine import some_ids


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    return make_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def grammars(small: Small) -> Iterator[Callable[[], Grammars]]:
    with compiled(small) as new:
        yield new


@pytest.fixture
def make(small: Small) -> Iterator[Make]:
    with engines(small.network) as one:
        yield one


@pytest.mark.parametrize(
    ("num_drafts", "schedule"), [(0, "fixed"), (1, "fixed"), (3, "confidence"), (5, "fixed")]
)
def test_c12_logprobs(small: Small, num_drafts: int, schedule: Any) -> None:
    """C12: of four requests whose drafts are accepted now and then, the two that ask get the
    log-probabilities of another request, or of another token of the step."""
    exact = small.source.network("fp32_noqdq")
    jobs = [
        job
        for n, length in enumerate((3, 8, 17, 33))
        for job in jobs_of([length], logprobs=(None, 4)[n % 2], temperature=0.6 * (n % 3), seed=n)
    ]
    kept: Any = {"kept_as": "float32"}
    expected = run_jobs(make_engine(exact, **kept), small.tokenizer, jobs)
    with engines(exact) as make:
        engine = make(num_drafts, schedule, **kept)
        play(engine, by_chance(answers_of(expected), (1.0, 0.8, 0.3, 0.0)))
        outputs = run_watched(engine, small.tokenizer, jobs, poison_after_calls)
    stats = engine.drafting.stats
    assert (0 < stats.num_accepted < stats.num_verified) == (num_drafts > 0)
    assert outputs == expected
    for job, output in zip(jobs, outputs, strict=True):
        if job.params.logprobs is None:
            assert output.logprobs is None
            continue
        assert output.logprobs is not None
        assert [one.token_id for one in output.logprobs] == output.token_ids
        ids = torch.tensor([[*job.prompt, *output.token_ids]])
        whole = run_whole(exact, ids)[0].log_softmax(-1)[len(job.prompt) - 1 : -1]
        of_tokens = whole.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
        found = torch.tensor([one.logprob for one in output.logprobs])
        torch.testing.assert_close(found, of_tokens, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("num_rows", "drafter"), [(8, "coin"), (8, "own"), (11, "coin"), (20, "wrong")]
)
def test_c15_ids_lie_in_the_vocabulary(
    small: Small, make: Make, num_rows: int, drafter: str
) -> None:
    """C15: a placeholder for a token or a draft that was not known yet reaches the network, where
    rows do not suffice for all drafts of eight requests."""
    jobs = jobs_of(range(3, 11), max_tokens=10)
    expected = in_turn(small, jobs)
    engine = with_drafter(make(5, num_rows=num_rows), drafter, expected)
    vocab_size = small.source.config.vocab_size
    blind: list[bool] = []

    def ready(inner: Any, plan: Any) -> Any:
        found = inner(plan)
        made = found.batch
        assert len(made.token_ids) <= num_rows
        assert ((made.token_ids >= 0) & (made.token_ids < vocab_size)).all()
        behind = made.positions[:, None] - torch.arange(made.lookback.shape[1])
        assert ((made.lookback >= 0) == (behind >= 0)).all()
        assert (made.lookback < vocab_size).all()
        return found

    def launch(inner: Any, plan: Any) -> Any:
        blind.append(bool((plan.follows >= 0).any()))
        return inner(plan)

    around(engine.worker, "ready", ready)
    around(engine.worker, "launch", launch)
    assert run_watched(engine, small.tokenizer, jobs, poison_after_calls) == expected
    assert sum(blind) > len(blind) / 2


@pytest.mark.parametrize(("num_drafts", "drafter"), [(0, "perfect"), (5, "perfect"), (3, "own")])
@pytest.mark.parametrize("num_rows", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_e06_grammars(
    small: Small,
    grammars: Callable[[], Grammars],
    make: Make,
    capfd: pytest.CaptureFixture[str],
    num_drafts: int,
    drafter: str,
    num_rows: int,
) -> None:
    """E06: a mask is made before the token that comes before it is known."""
    jobs = [
        Job(
            some_ids(n, 3 + 5 * n),
            SamplingParams(
                temperature=(0, 1.5)[n // 4], seed=n, max_tokens=16, so_args=SO_ARGS[n % 4]
            ),
            arrival=n // 3,
        )
        for n in range(8)
    ]
    plain = reading_so_args(make_engine(small.network, grammars=grammars()))
    expected = run_jobs(plain, small.tokenizer, jobs)
    assert {one.finish_reason for one in expected} == {"stop", "length"}
    capfd.readouterr()
    engine = reading_so_args(make(num_drafts, num_rows=num_rows, grammars=grammars()))
    if num_drafts:
        with_drafter(engine, drafter, expected)
    assert run_jobs(engine, small.tokenizer, jobs) == expected
    # The module may propose a control token, of which the library writes a line.
    assert drafter == "own" or not "".join(capfd.readouterr())


PENALTIES: list[dict[str, Any]] = [
    {"frequency_penalty": 1.5},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.8},
]


@pytest.mark.parametrize("num_drafts", [0, 4])
def test_g12_penalties(small: Small, make: Make, num_drafts: int) -> None:
    """G12: penalties count a placeholder in place of the last token, or have no effect; also where
    a neighbour ends in the same step, foreseen or not, so that rows change places."""
    # Tokens that come again and again, if nothing keeps them from it.
    liked: dict[str, Any] = {"logit_bias": {7: 8.0, 11: 8.0}}
    (free,) = in_turn(small, jobs_of([9], **liked))
    penalised = [job for ask in PENALTIES for job in jobs_of([9], **ask, **liked, logprobs=2)]
    ending = jobs_of([9])
    (known,) = in_turn(small, ending)
    for length in range(1, 7):
        ending += jobs_of([9], max_tokens=length)
        # Ends by a token that nobody knows before.
        ending += jobs_of([9], stop_token_ids=[known.token_ids[length - 1]])
    sizes = {"num_slots": 20}
    half = len(ending) // 2
    for jobs in (penalised + ending, ending[:half] + penalised + ending[half:]):
        expected = in_turn(small, jobs, **sizes)
        for job, output in zip(jobs, expected, strict=True):
            if job in penalised:
                assert output.token_ids != free.token_ids
        engine = make(num_drafts, **sizes)
        if num_drafts:
            play(engine, by_chance(answers_of(expected), (0.8, 0.6, 1.0)))
        assert run_jobs(engine, small.tokenizer, jobs) == expected


@pytest.mark.parametrize(
    ("num_drafts", "drafter", "is_included"),
    [(0, "own", False), (0, "own", True), (5, "perfect", False), (5, "coin", True)],
)
def test_h04_nothing_behind_a_stop_string(
    small: Small, make: Make, num_drafts: int, drafter: str, is_included: bool
) -> None:
    """H04: what was said behind a stop string, in the same step or in the one that was under way,
    gets into the text, the ids, the log-probabilities or the counts."""
    lengths, sizes = range(2, 10), {"num_slots": 10}
    stops: dict[str, Any] = {"stop": ["e", "th", "a"], "include_stop_str_in_output": is_included}
    drawn: dict[str, Any] = {"temperature": 1.5, "seed": 3, "logprobs": 1, "max_tokens": 16}
    jobs = jobs_of(lengths, **drawn, **stops)
    expected = in_turn(small, jobs, **sizes)
    assert {one.finish_reason for one in expected} == {"stop"}
    engine = make(num_drafts, **sizes)
    if num_drafts:
        # They go on where the answer ends, with what would be said without the stop.
        with_drafter(engine, drafter, in_turn(small, jobs_of(lengths, **drawn), **sizes))
    said = recorded(engine)
    when_finished: dict[tuple[str, int], int] = {}

    def finish(inner: Any, request_id: str, choice: int, reason: Any) -> None:
        when_finished[request_id, choice] = len(said[request_id, choice])
        inner(request_id, choice, reason)

    around(engine, "finish", finish)
    outputs = run_jobs(engine, small.tokenizer, jobs)
    assert outputs == expected
    for number, output in enumerate(outputs):
        text = small.tokenizer.decode(output.token_ids)
        at = min(text.find(stop) for stop in stops["stop"] if stop in text)
        stop = str(output.outputs[0].stop_reason)
        assert text[at:].startswith(stop)
        assert output.text == text[: at + len(stop) * is_included]
        # Nothing comes behind the step that brought the stop; the usage ends with the stop's token.
        all_said = said[str(number), 0]
        assert len(all_said) == when_finished[str(number), 0]
        assert all_said[: len(output.token_ids)] == output.token_ids
        drafts = output.drafts
        assert drafts.accepted < len(output.token_ids)
        assert drafts.accepted <= drafts.verified <= drafts.drafted
