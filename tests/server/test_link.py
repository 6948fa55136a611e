"""The link to an engine process: it answers as `LLM` does, and nothing is left over."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.errors import CheckpointError, ConfigError, RequestError
from deepinfer.front.collector import Collector
from deepinfer.outputs import RequestOutput
from deepinfer.server.link import EngineCommand, EngineLink, EngineLost, EngineUnavailable
from deepinfer.server.wire import Submit
from tests.server.engines import OPTIONS, answer, linked, read, run, until

T = TypeVar("T")

GREEDY = SamplingParams(temperature=0, max_tokens=12)
LONG = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=4)
SOME = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
PARAMS = [
    GREEDY,
    SamplingParams(seed=7, max_tokens=20, n=8, logprobs=3),
    SamplingParams(seed=3, max_tokens=20, n=8, top_k=5, stop=["e", "a"]),
    SamplingParams(seed=-1, max_tokens=9, prompt_logprobs=2, logit_bias={5: 3.5}, min_tokens=4),
    SamplingParams(temperature=0, max_tokens=6, golden_token_ids=[40, -1, 42], stop_token_ids=[42]),
]


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, **OPTIONS) as made:
        yield made


def on_uvloop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return pytest.importorskip("uvloop").run(main())


OTHER_WAYS = [(run, False), (run, True), (on_uvloop, False)]


@pytest.mark.parametrize(
    ("runs", "is_ahead"),
    [(on_uvloop, True), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHER_WAYS)],
)
def test_same_as_llm(runs: Callable[..., Any], is_ahead: bool, llm: LLM, tiny_dir: Path) -> None:
    """Tokens, log-probabilities or reasons to end are lost, doubled or swapped on the way."""
    tokenizer = llm.get_tokenizer()
    prompts = [tokenizer.encode(f"{n} The lamp " * (n + 1)) for n in range(len(PARAMS))]
    expected = llm.generate(prompt_token_ids=prompts, sampling_params=PARAMS)

    async def main() -> list[RequestOutput]:
        async with linked(tiny_dir, async_scheduling=is_ahead) as link:
            asked = zip(prompts, PARAMS, strict=True)
            found = await asyncio.gather(*(answer(link, tokenizer, *one) for one in asked))
            await until(lambda: link.stats.running == 0)
            assert link.stats.free_slots == link.stats.slots
            assert link.num_open == 0
            return found

    for found, wanted in zip(runs(main), expected, strict=True):
        assert found.outputs == wanted.outputs
        assert found.prompt_logprobs == wanted.prompt_logprobs


def test_abort_frees_memory(llm: LLM, tiny_dir: Path) -> None:
    """K04: a request whose reader left keeps its slot, in whichever way and moment it left."""
    tokenizer = llm.get_tokenizer()

    async def one_batch_of(link: EngineLink) -> None:
        async with link.submit(Submit("", [5] * 300, LONG)) as channel:
            async for _ in channel.batches():
                return

    async def main() -> None:
        async with linked(tiny_dir) as link:
            # 1: it left while it was read. 2: before anything came. 3: its task was cancelled.
            await one_batch_of(link)
            async with link.submit(Submit("", [5], LONG)):
                pass
            task = asyncio.create_task(answer(link, tokenizer, [5, 6], LONG))
            # What runs may still be the first: it is told with the next step.
            await until(lambda: link.num_open == 1 and link.stats.running == 1)
            task.cancel()
            assert link.num_open == 1
            await asyncio.gather(task, return_exceptions=True)
            assert link.num_open == 0
            steps = link.stats.steps_total
            await until(lambda: link.stats.running == 0 and link.stats.free_slots == 16)
            # The engine becomes idle a step or two after the last one left.
            await asyncio.sleep(0.7)
            assert link.stats.steps_total - steps < 200
            assert (await answer(link, tokenizer, [5, 6], GREEDY)).finish_reason == "length"

    run(main)


def test_abort_ends_within_a_step(tiny_dir: Path) -> None:
    """An aborted request runs on to its end, and its words reach a channel that is closed."""

    async def main() -> None:
        async with linked(tiny_dir) as link:
            channel = link.submit(Submit("", [5], LONG))
            async for batch in channel.batches():
                if batch[-1].token_id is not None:
                    break
            before = sum(1 for _ in batch)
            channel.abort()
            channel.abort()
            assert [batch async for batch in channel.batches()] == []
            await until(lambda: link.stats.steps_total > 0 and link.stats.running == 0)
            # Those that were under way when the message came.
            assert link.stats.output_tokens_total <= before + 20

    run(main)


def test_two_requests_of_eight(llm: LLM, tiny_dir: Path) -> None:
    """Choices of several requests get into each other, or one's stop ends another."""
    tokenizer = llm.get_tokenizer()
    params = [SamplingParams(seed=n, n=8, max_tokens=40, stop=["e", " th"]) for n in (1, 2)]
    prompts = [tokenizer.encode("One winter"), tokenizer.encode("The sea")]
    expected = llm.generate(prompt_token_ids=prompts, sampling_params=params)

    async def main() -> list[RequestOutput]:
        async with linked(tiny_dir) as link:
            both = zip(prompts, params, strict=True)
            return await asyncio.gather(*(answer(link, tokenizer, *one) for one in both))

    assert [found.outputs for found in run(main)] == [wanted.outputs for wanted in expected]
    reasons = {out.finish_reason for wanted in expected for out in wanted.outputs}
    assert reasons == {"stop", "length"} or reasons == {"stop"}


def test_refusals_hurt_nobody(llm: LLM, tiny_dir: Path) -> None:
    """I03: a request that does not fit ends, or delays, those that run beside it."""
    tokenizer = llm.get_tokenizer()
    expected = llm.generate(prompt_token_ids=[[5, 6, 7]], sampling_params=SOME)[0]

    async def main() -> None:
        async with linked(tiny_dir) as link:
            good = asyncio.create_task(answer(link, tokenizer, [5, 6, 7], SOME))
            for _ in range(10):
                with pytest.raises(RequestError, match="prompt"):
                    await answer(link, tokenizer, [5] * 700, SHORT)
                await asyncio.sleep(0.01)
            with pytest.raises(RequestError):
                link.submit(Submit("", [5], SamplingParams(stop="\ud800")))
            assert (await good).outputs == expected.outputs
            assert link.num_open == 0

    run(main)


@pytest.mark.slow
@pytest.mark.sample
def test_a_grammar_that_does_not_compile(llm: LLM, tiny_dir: Path) -> None:
    """A request that is refused after it was taken in looks like an answer, or ends others."""
    tokenizer = llm.get_tokenizer()
    params = SamplingParams(so_args={"schema_type": "ebnf", "schema": "root ::= 'a'"}, n=2)

    async def main() -> None:
        async with linked(tiny_dir) as link:
            good = asyncio.create_task(answer(link, tokenizer, [5, 6, 7], SOME))
            with pytest.raises(RequestError) as caught:
                await answer(link, tokenizer, [5], params, grammar="root ::= nothing")
            assert caught.value.field == "so_args.schema"
            assert (await good).finish_reason == "length"

    run(main)


def test_ids_of_callers_may_repeat(llm: LLM, tiny_dir: Path) -> None:
    """What is said late of an aborted request is read by the next one with its id."""
    tokenizer = llm.get_tokenizer()
    expected = llm.generate(prompt_token_ids=[[9, 8]], sampling_params=SHORT)[0]

    async def main() -> None:
        async with linked(tiny_dir) as link:
            for _ in range(8):
                async with link.submit(Submit("same", [5] * 40, LONG)) as early:
                    async for _ in early.batches():
                        break
                collector = Collector("same", None, [9, 8], SHORT, tokenizer)
                async with link.submit(Submit("same", [9, 8], SHORT)) as channel:
                    await read(channel, collector)
                assert collector.output().outputs == expected.outputs

    run(main)


def test_stats(llm: LLM, tiny_dir: Path) -> None:
    """O03: gauges stay where they were when the last request ended."""
    tokenizer = llm.get_tokenizer()

    async def main() -> None:
        async with linked(tiny_dir) as link:
            task = asyncio.create_task(answer(link, tokenizer, [5, 6, 7], SOME))
            await until(lambda: link.stats.running == 1)
            assert link.stats.free_slots == link.stats.slots - 1
            await task
            assert await until(lambda: link.stats.running == 0) < 1
            assert link.stats.output_tokens_total == 30
            assert link.stats.prompt_tokens_total == 3

    run(main)


BAD = [
    ("no/such/folder", {}, "model"),
    (None, {"dtype": "int4"}, "dtype"),
    (None, {"max_model_length": 5}, "max_model_length"),
    (None, {"kv_cache_bytes": 1000}, "kv_cache_bytes"),
]


@pytest.mark.parametrize(("model", "options", "where"), BAD, ids=[one[2] for one in BAD])
def test_a_first_start_that_fails(
    model: str | None, options: dict[str, object], where: str, tiny_dir: Path
) -> None:
    """O05: the cause of a start that failed stays in the other process, or is tried for ever."""
    events: list[str] = []

    async def main() -> None:
        command = EngineCommand(model or str(tiny_dir), {"device": "cpu", **options})
        link = EngineLink(command, events.append)
        await link.start()
        with pytest.raises(ConfigError) as caught:
            await link.ready()
        assert caught.value.where == where
        assert link.state == "stopped"
        with pytest.raises(ConfigError):
            await link.ready()
        with pytest.raises(EngineUnavailable):
            link.submit(Submit("", [5], GREEDY))
        await link.close()

    run(main)
    assert len(events) == 1


def test_a_damaged_checkpoint(tiny_copy: Path) -> None:
    """O05: a file that is damaged is called a process that ended."""
    shard = next(tiny_copy.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])

    async def main() -> None:
        link = EngineLink(EngineCommand(str(tiny_copy), OPTIONS))
        await link.start()
        with pytest.raises(CheckpointError, match=shard.name):
            await link.ready()
        await link.close()

    run(main)


def test_before_and_after(tiny_dir: Path) -> None:
    """A request that comes too early or too late waits for ever; or a wait for a closed link."""

    async def main() -> None:
        link = EngineLink(EngineCommand(str(tiny_dir), OPTIONS))
        await link.start()
        assert link.state == "starting"
        with pytest.raises(EngineUnavailable):
            link.submit(Submit("", [5], GREEDY))
        waiting = asyncio.create_task(link.ready())
        await until(lambda: link.engine_pid is not None)
        await link.close()
        with pytest.raises(EngineUnavailable):
            await waiting
        await link.close()

        async with linked(tiny_dir) as other:
            channel = other.submit(Submit("", [5], LONG))
        with pytest.raises(EngineLost):
            [batch async for batch in channel.batches()]

    run(main)


def test_no_torch_in_the_http_process() -> None:
    """The HTTP process loads torch: seconds, and half a gigabyte, for nothing."""
    program = "import deepinfer.server.link, sys; print('torch' in sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert found == "False\n"
