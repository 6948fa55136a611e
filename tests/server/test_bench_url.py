"""`deepinfer bench --url`: what is measured is what was asked for, and the report says so."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.bench.client import BadAnswer, Chunks, Target, asked
from deepinfer.bench.load import UrlResult, UrlWorkload, bench_url, cpu_s
from deepinfer.bench.url_report import main, percentile, url_lines, url_record
from deepinfer.errors import ConfigError
from tests.server.scripted import Part, scripted_server

SMALL = UrlWorkload(streams=2, requests=5, input_words=8, output_len=4)


@pytest.fixture
def part() -> Iterator[Part]:
    with scripted_server() as found:
        yield found


def measured(part: Part, workload: UrlWorkload = SMALL) -> UrlResult:
    return asyncio.run(bench_url(Target.of(part.url), workload))


def report(part: Part, workload: UrlWorkload = SMALL) -> str:
    return "\n".join(url_lines(Target.of(part.url), measured(part, workload)))


def test_a_run(part: Part) -> None:
    """Requests are left out or sent twice, or times are of something else."""
    part.pause_s = 0.02
    result = measured(part)
    assert len(part.asked) == len(result.answers) == 5
    assert result.output_tokens == 20
    assert not result.faults
    assert len(result.between_s) == 15
    assert 0.015 < sorted(result.between_s)[7] < 0.2
    assert all(0 < first < 1 for first in result.first_token_s)


def test_every_prompt_is_new(part: Part) -> None:
    """O01: prompts are the same in each request, and the figures are those of the cache. Those of
    another seed are others; those of one seed are the same, and the report shows the share. Who
    names no seed gets another each time."""
    part.usage["prompt_tokens_details"] = {"cached_tokens": 60}  # type: ignore[assignment]
    assert "cached     300 prompt tokens (60.0 %)" in report(part)
    measured(part, UrlWorkload(streams=2, requests=5, input_words=8, output_len=4, seed=1))
    prompts = [body["prompt"] for body in part.asked]
    assert len(set(prompts)) == 10
    assert all(len(prompt.split()) == 8 for prompt in prompts)
    measured(part)
    assert sorted(body["prompt"] for body in part.asked[10:]) == sorted(prompts[:5])
    assert len({UrlWorkload().seed for _ in range(5)}) > 1


def test_less_than_asked_is_a_fault(part: Part) -> None:
    """O02: a server answers with one token each, and the speed of that is reported as if nothing
    was wrong."""
    part.usage["completion_tokens"] = 1
    assert "fault: 1 of 4 output tokens (5 times)" in report(part)
    shown: list[str] = []
    assert main(Target.of(part.url), SMALL, None, as_json=True, show=shown.append) == 1
    assert json.loads(shown[0])["faults"] == {"1 of 4 output tokens": 5}


def test_sampling_is_sent_and_shown(part: Part) -> None:
    """O04: tokens are chosen greedily without a word, which costs less than what is served."""
    workload = UrlWorkload(
        streams=1, requests=1, output_len=4, temperature=0.7, top_p=0.9, top_k=40, seed=3
    )
    text = report(part, workload)
    (body,) = part.asked
    sent = {name: body[name] for name in ("temperature", "top_p", "top_k", "seed", "max_tokens")}
    assert sent == {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 3, "max_tokens": 4}
    assert body["ignore_eos"] is True
    assert "temperature 0.7, top_p 0.9, top_k 40, ignore_eos True, seed 3" in text
    assert "demo at 127.0.0.1" in text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"refusal": (429, "full", 1)}, "status 429"),
        ({"breaks_off": True}, "broke off"),
    ],
)
def test_errors_are_counted(part: Part, change: dict[str, Any], said: str) -> None:
    """Requests that failed are left out, and the rest looks fast."""
    for name, value in change.items():
        setattr(part, name, value)
    result = measured(part)
    assert sum(result.faults.values()) == 5
    assert said in next(iter(result.faults))


def test_counts_of_the_server_are_differences(part: Part) -> None:
    """Drafts of other people's requests are in the figures."""
    part.metrics = "# HELP x y\ndeepinfer_draft_rounds_total 100.0\n"
    assert measured(part).server == {"deepinfer_draft_rounds_total": 0.0}


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:99999", ""]
)
def test_bad_address(url: str) -> None:
    """A mistyped address ends in a trace."""
    with pytest.raises(ConfigError, match="URL"):
        Target.of(url)


def test_addresses() -> None:
    """The base URL that other clients are given does not work here."""
    assert Target.of("http://h:1/v1/") == Target.of("http://h:1") == Target("h", 1)
    assert Target.of("https://h/deep/v1", "k") == Target("h", 443, "/deep", True, "k")
    assert Target.of("http://[::1]:8000").host == "::1"


def test_no_server() -> None:
    """Nobody listens, and a trace is shown instead of a way out."""
    with scripted_server() as part:
        url = part.url
    with pytest.raises(ConfigError, match="deepinfer serve"):
        asyncio.run(bench_url(Target.of(url), SMALL))


def test_a_key_is_needed(part: Part) -> None:
    """All requests fail one by one where the first tells why."""
    part.key = "k"
    with pytest.raises(ConfigError, match="--api-key"):
        measured(part)
    assert not asyncio.run(bench_url(Target.of(part.url, "k"), SMALL)).faults


@pytest.mark.parametrize("name", ["streams", "requests", "input_words", "output_len"])
def test_nothing_to_measure(name: str) -> None:
    """Zero requests are reported as zero tokens a second."""
    with pytest.raises(ConfigError, match="--" + name.replace("_", "-")):
        UrlWorkload(**{name: 0})


def test_percentiles() -> None:
    """The slowest answers hide in a percentile that is another one."""
    assert percentile([], 0.5) == 0
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([1.0], 1.0) == 1


def test_record_is_json(part: Part) -> None:
    """A program cannot read the report."""
    assert json.loads(json.dumps(url_record(Target.of(part.url), measured(part))))["output_tokens"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processor_time() -> None:
    """The time of another field, or of one thread."""
    work = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = cpu_s(process.pid)
        process.communicate(b"\n")
    assert 0.25 < found < 1


@given(
    parts=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_chunks_may_be_cut_anywhere(parts: list[bytes], cuts: list[int]) -> None:
    """A network cuts a chunk, or its size, in two, and bytes are lost or doubled."""
    sent = b"".join(f"{len(part):X}\r\n".encode() + part + b"\r\n" for part in parts)
    sent += b"0\r\n\r\n"
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    chunks = Chunks()
    found = [chunks.feed(sent[a:b]) for a, b in pairwise(edges)]
    assert b"".join(found) == b"".join(parts)
    assert chunks.has_ended


def test_no_chunk() -> None:
    """What is no answer is taken for an empty one."""
    with pytest.raises(BadAnswer):
        Chunks().feed(b"hello\r\n")


def test_answers_of_a_given_length(part: Part) -> None:
    """A whole answer is waited for until the connection ends."""

    async def ask() -> bytes:
        async with asked(Target.of(part.url), "GET", "/v1/models") as reply:
            return await asyncio.wait_for(reply.body(), 2)

    assert json.loads(asyncio.run(ask()))["data"]


def test_the_client_needs_no_torch() -> None:
    """A client takes seconds to start, and a machine that only measures needs torch."""
    modules = "deepinfer.bench.url_report, deepinfer.tools.chat_url, deepinfer.server.metrics"
    code = f"import {modules}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
