"""Processes that die: nobody waits for an answer that cannot come, and nothing runs for nobody."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deepinfer import SamplingParams
from deepinfer.config.model import read_model_config
from deepinfer.server.link import EngineLink, EngineLost, EngineUnavailable
from deepinfer.server.restart import Backoff
from deepinfer.server.wire import Submit
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.server.engines import answer, is_alive, linked, run, until

LONG = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return load_tokenizer(tiny_dir, read_model_config(tiny_dir))


def kill(link: EngineLink, number: int = signal.SIGKILL) -> None:
    assert link.engine_pid is not None
    os.kill(link.engine_pid, number)


async def kill_under_load(
    link: EngineLink, tokenizer: Tokenizer, after_s: float
) -> tuple[int, int]:
    """16 requests, half of them short, and a kill: how many were answered and lost, each once."""
    params = [SHORT, LONG] * 8
    tasks = [
        asyncio.create_task(answer(link, tokenizer, [40 + n], one)) for n, one in enumerate(params)
    ]
    await asyncio.sleep(after_s)
    pid = link.engine_pid
    kill(link)
    start = time.monotonic()
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    assert time.monotonic() - start < 8
    assert pid is not None
    lost = [end for end in ends if isinstance(end, EngineLost)]
    whole = [end for end in ends if not isinstance(end, BaseException)]
    assert len(lost) + len(whole) == 16
    for end in whole:
        assert len(end.token_ids) == 4
        assert end.finish_reason == "length"
    return len(whole), len(lost)


async def kills(folder: Path, tokenizer: Tokenizer, count: int) -> None:
    events: list[str] = []
    pids = set()
    async with linked(folder, events, draft_schedule="off") as link:
        for number in range(count):
            pids.add(link.engine_pid)
            # Before anything runs, while the short ones run, when only the long ones do.
            whole, lost = await kill_under_load(link, tokenizer, (0.0, 0.1, 1.0)[number % 3])
            assert (lost >= 8, whole + lost) == (True, 16)
            assert link.num_open == 0
            with pytest.raises(EngineUnavailable):
                link.submit(Submit("", [5], SHORT))
            await asyncio.wait_for(link.ready(), 60)
            found = await answer(link, tokenizer, [5], SHORT)
            assert len(found.token_ids) == 4
            assert (link.num_restarts, link.state) == (number + 1, "ready")
            # As if it had been well for a minute: the waits are another test's.
            link._ready_at_s -= 100
        await until(lambda: link.stats.free_slots == link.stats.slots)
    assert len(pids) == count
    assert not [pid for pid in pids if pid is not None and is_alive(pid)]
    assert sum("signal 9 (SIGKILL); restarting in" in line for line in events) == count


@pytest.mark.slow
@pytest.mark.sample
def test_three_kills(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """A request is lost without a word, or answered twice, when its engine dies; or the next engine
    does not come."""
    run(lambda: kills(tiny_dir, tokenizer, 3))


@pytest.mark.slow
def test_twenty_kills(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """The same, often enough to meet rare moments."""
    run(lambda: kills(tiny_dir, tokenizer, 20), most_s=280)


def test_loss_is_told_at_once(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """A reader of an engine that was killed waits for seconds; what came before is lost."""

    async def main() -> None:
        async with linked(tiny_dir) as link, link.submit(Submit("", [5], LONG)) as channel:
            await until(lambda: channel.num_held > 2)
            held = channel.num_held
            kill(link)
            start = time.monotonic()
            await until(lambda: link.state == "restarting")
            assert time.monotonic() - start < 2  # not after the seconds that a silent engine gets
            batches = channel.batches()
            assert len(await anext(batches)) >= held
            with pytest.raises(EngineLost):
                await anext(batches)
            assert link.stats.running == 0

    run(main)


def test_counts_go_on(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """Counts fall when the engine is started again."""

    async def main() -> None:
        async with linked(tiny_dir) as link:
            await answer(link, tokenizer, [5], SHORT)
            await until(lambda: link.stats.output_tokens_total == 4)
            kill(link)
            await until(lambda: link.state == "restarting")
            assert link.stats.output_tokens_total == 0
            assert link.past_stats.output_tokens_total == 4

    run(main)


def test_a_step_that_raises(tiny_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """O05: an engine that fails leaves no trace of why, or its requests wait for ever."""
    events: list[str] = []

    async def main() -> None:
        async with linked(tiny_dir, events) as link:
            async with link.submit(Submit("", [5], LONG)) as channel:
                assert await anext(channel.batches())
                # No such token: the front would have refused it.
                broken = link.submit(Submit("", [2**31 - 1], SHORT))
                with pytest.raises(EngineLost):
                    [batch async for batch in channel.batches()]
                with pytest.raises(EngineLost):
                    [batch async for batch in broken.batches()]
            await link.ready()

    run(main)
    (line,) = [line for line in events if "failed" in line]
    assert "Error" in line
    assert "restarting in 0.5 s" in line
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.sample
def test_an_engine_that_hangs(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """A hung engine keeps all its requests waiting; or one that is only idle is taken for hung."""
    events: list[str] = []

    async def main() -> None:
        async with linked(tiny_dir, events, hang_s=2.0) as link:
            await answer(link, tokenizer, [5], SHORT)
            await asyncio.sleep(3)  # idle is not hung
            assert link.num_restarts == 0
            kill(link, signal.SIGSTOP)
            start = time.monotonic()
            with pytest.raises(EngineLost):
                await answer(link, tokenizer, [5], LONG)
            assert 1.5 < time.monotonic() - start < 30
            await link.ready()
            assert len((await answer(link, tokenizer, [5], SHORT)).token_ids) == 4

    run(main)
    assert any("has said nothing for 2" in line for line in events)


@pytest.mark.slow
@pytest.mark.sample
def test_a_restart_that_fails_is_tried_again(tiny_copy: Path) -> None:
    """A model that cannot be read for a moment is the end of the server."""
    config, aside = tiny_copy / "config.json", tiny_copy / "aside"
    events: list[str] = []

    async def main() -> None:
        async with linked(tiny_copy, events) as link:
            config.rename(aside)
            kill(link)
            await until(lambda: any("failed: " in line for line in events), 30)
            assert link.state == "restarting"
            aside.rename(config)
            await asyncio.wait_for(link.ready(), 60)

    run(main)
    waits = [line.rsplit("restarting in ")[1] for line in events if "restarting" in line]
    assert waits[:2] == ["0.5 s", "1 s"]


def test_ends_on_sigterm(tiny_dir: Path) -> None:
    """The engine process outlives the server, or must be killed, or ends at Ctrl-C before the
    server has decided anything."""

    async def main() -> None:
        async with linked(tiny_dir) as link, link.submit(Submit("", [5], LONG)) as channel:
            assert await anext(channel.batches())
            pid = link.engine_pid
            assert pid is not None
            os.kill(pid, signal.SIGINT)
            assert await anext(channel.batches())
            start = time.monotonic()
            await link.close()
            assert time.monotonic() - start < 20
            assert not is_alive(pid)
            assert link.state == "stopped"

    run(main)


_SERVER = """
import asyncio, sys
from deepinfer.server.link import EngineCommand, EngineLink
from deepinfer.server.wire import Submit
from deepinfer import SamplingParams

async def main():
    link = EngineLink(EngineCommand(sys.argv[1], {"device": "cpu", "max_model_len": 600}))
    await link.start()
    if sys.argv[2] == "loading":
        while link.engine_pid is None:
            await asyncio.sleep(0.01)
        print(link.engine_pid, flush=True)
    await link.ready()
    params = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)
    channels = [link.submit(Submit("", [5], params)) for _ in range(4)]
    async for batch in channels[0].batches():
        print(link.engine_pid, flush=True)
        if sys.argv[2] == "silent":
            __import__("time").sleep(100)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["loading", "running", "silent"])
def test_the_parent_is_killed(moment: str, tiny_dir: Path) -> None:
    """The engine process of a server that was killed goes on and holds the GPU."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(tiny_dir), moment], stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        assert is_alive(pid)
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert "deepinfer.server.engine_process" in command
        assert str(tiny_dir) in command
        time.sleep(0.3)
        server.kill()
        start = time.monotonic()
        while is_alive(pid):
            assert time.monotonic() - start < 15
            time.sleep(0.01)


def test_backoff() -> None:
    """A broken model is loaded without a pause, or one death a day waits for half a minute."""
    backoff = Backoff()
    waits = [backoff.after(1.0) for _ in range(8)]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [backoff.after(60.0), backoff.after(3.0)] == [0.5, 1]
