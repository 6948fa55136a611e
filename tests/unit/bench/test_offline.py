"""A benchmark that says what it did: lengths, sampling, cache, and what went wrong."""

import json
from typing import Any

import pytest

from deepinfer.bench import command
from deepinfer.bench.offline import Workload, bench_offline, find_faults, random_prompts
from deepinfer.bench.report import offline_lines, offline_record, survey_ground
from deepinfer.config.engine import EngineArgs
from deepinfer.errors import ConfigError, RequestError
from deepinfer.worker.worker import Worker
from tests.unit.bench.small import CONFIG, small_engine

WORKLOAD = Workload(input_len=20, output_len=5, batch=3, temperature=0.7, seed=11)


def report(workload: Workload) -> str:
    result = bench_offline(small_engine(), CONFIG, workload)
    return "\n".join(offline_lines(survey_ground("small", 1, "bfloat16"), result))


def test_delivered_is_counted() -> None:
    """O02: every request ends after one token, and tokens a second count the prompts."""
    result = bench_offline(small_engine(), CONFIG, WORKLOAD)
    assert result.delivered == [5, 5, 5]
    assert result.reasons == ["length"] * 3
    assert result.faults == []
    assert result.prompt_rows == result.prompt_tokens == 60
    generated = result.decode_steps.decode_rows + result.mixed_steps.decode_rows
    assert generated == 3 * (5 - 1)  # the first token comes with the prompt's last row
    assert len(result.first_token_s) == 3
    assert result.decode_tokens_per_s > 0


def test_rows_of_mixed_steps_are_told_apart() -> None:
    """O02: a chunk of a prompt counts as generation because other requests generate meanwhile."""
    engine = small_engine(max_num_batched_tokens=16)
    result = bench_offline(engine, CONFIG, Workload(input_len=70, output_len=20, batch=4))
    assert result.prompt_rows == 280
    groups = (result.prompt_steps, result.mixed_steps, result.decode_steps)
    assert sum(group.decode_rows for group in groups) == 4 * 19
    assert result.prompt_steps.decode_rows == result.decode_steps.prompt_rows == 0


def test_worker_is_given_back() -> None:
    """The engine goes on with the benchmark's worker, which counts for nobody."""
    engine = small_engine()
    worker = engine.worker
    bench_offline(engine, CONFIG, WORKLOAD)
    assert engine.worker is worker
    assert type(engine.worker) is Worker


@pytest.mark.parametrize("name", ["input_len", "output_len", "batch"])
def test_odd_runs_are_refused(name: str) -> None:
    """O02: one token a request, which says nothing about decoding, or nothing at all."""
    least = 2 if name == "output_len" else 1
    with pytest.raises(ConfigError) as refused:
        Workload(**{name: least - 1})
    assert refused.value.where == "--" + name.replace("_", "-")
    Workload(**{name: least})


def test_early_end_is_a_fault() -> None:
    """O02: requests end at the end token, and the report divides by what was asked."""
    workload = Workload(input_len=4, output_len=9, batch=2, ignore_eos=False)
    assert find_faults(workload, [9, 3], ["length", "stop"]) == [
        "request 1: 3 of 9 output tokens (stop)"
    ]
    assert find_faults(workload, [9, 9], ["length", "stop"]) == []


def test_report_says_how() -> None:
    """O04: greedy is timed where sampling was meant, and nothing tells."""
    text = report(WORKLOAD)
    assert "temperature 0.7, top_p 1, top_k -1, ignore_eos True, seed 11" in text
    assert "asked      3 requests of 20 prompt and 5 new tokens" in text
    assert "60 prompt tokens, 15 new ones (5 to 5 each)" in text
    assert "warm: one request before, of another prompt" in text
    assert "cold" in report(Workload(input_len=4, output_len=2, batch=1, cold=True))


def test_cached_share_is_measured() -> None:
    """O01: a second run is fast because its prompts are known, and the report does not say so."""
    engine = small_engine()
    for _ in range(2):
        result = bench_offline(engine, CONFIG, WORKLOAD)
        text = "\n".join(offline_lines(survey_ground("small", 1, "bfloat16"), result))
        assert result.cached_tokens == 0
        assert "cached     0 prompt tokens (0.0 %)" in text


def test_prompts() -> None:
    """O01: all requests have one prompt, or every run the same ones whatever the seed."""
    first = random_prompts(CONFIG, 3, 50, seed=0)
    assert [len(prompt) for prompt in first] == [50] * 3
    assert first[0] != first[1]
    assert first == random_prompts(CONFIG, 3, 50, seed=0)
    assert first != random_prompts(CONFIG, 3, 50, seed=1)
    assert all(CONFIG.eos_token_id not in prompt for prompt in first)


def test_sampling_is_checked_first() -> None:
    """O05: the model is built for a minute before a wrong number is noticed."""
    shown: list[str] = []
    with pytest.raises(RequestError):
        command.offline(
            None,
            "no such toy",
            Workload(temperature=-1.0),
            EngineArgs(),
            as_json=False,
            show=shown.append,
        )
    assert shown == []


def test_json_has_all_of_it() -> None:
    """O04: the file that is kept lacks what the screen had said."""
    result = bench_offline(small_engine(), CONFIG, WORKLOAD)
    ground = survey_ground("small", 1, "bfloat16")
    record: dict[str, Any] = json.loads(json.dumps(offline_record(ground, result)))
    assert record["workload"]["seed"] == 11
    assert record["workload"]["temperature"] == 0.7
    assert record["delivered"] == [5, 5, 5]
    assert record["cached_tokens"] == 0
    assert record["ground"]["dtype"] == "bfloat16"
    assert record["decode_tokens_per_s"] == result.decode_tokens_per_s
