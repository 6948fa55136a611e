"""Faults of prefix caches as users reported them, and gauges that do not come back.

The engine with a cache is compared with one that has none.
"""

import dataclasses
from typing import Any

import pytest
import torch

from deepinfer.cache.host_tier import HostTier
from deepinfer.cache.tiers import Tiers
from deepinfer.config.words import PrefixReplay
from deepinfer.engine.engine import Engine
from deepinfer.messages import EngineStats
from deepinfer.model.network import Network
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.limits import Limits
from deepinfer.scheduler.prefix_cache import PrefixCache
from deepinfer.scheduler.request import Request
from deepinfer.tokenizer.tokenizer import Tokenizer
from deepinfer.worker.blobs import blob_bytes, start_save
from deepinfer.worker.pools import make_pools
from tests.laws.drafters import answers_of, play, wrong
from tests.laws.engines import Drafts, Job, Run, assert_empty, make_engine, poison, run_jobs
from tests.laws.test_engine import some_ids

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)


@pytest.fixture(scope="module")
def network(tiny_networks: dict[str, Network]) -> Network:
    return tiny_networks["fp32"]


def ask(
    engine: Engine, tokenizer: Tokenizer, prompt: list[int], params: SamplingParams = PARAMS
) -> RequestOutput:
    (output,) = run_jobs(engine, tokenizer, [Job(prompt, params)])
    return output


def host_tiers(network: Network, num_blobs: int) -> Tiers:
    num_bytes = blob_bytes(make_pools(network.setup.config, 1, 1))
    return Tiers(num_bytes, host=HostTier(num_blobs * num_bytes))


def prefix_of(engine: Engine) -> PrefixCache:
    prefix = engine.scheduler.memory.prefix
    assert prefix is not None
    return prefix


def kept(engine: Engine) -> dict[bytes, int]:
    """The blocks that can be found, by key."""
    blocks = engine.scheduler.memory.blocks
    keys = {blocks.key(block_id): block_id for block_id in range(blocks.num_blocks)}
    return {key: block_id for key, block_id in keys.items() if key is not None}


def contents(engine: Engine) -> dict[bytes, bytes]:
    """What they hold, all parts of it."""
    found = kept(engine)
    blobs = start_save(engine.worker.pools, list(found.values()))()
    return dict(zip(found, blobs, strict=True))


@pytest.mark.parametrize(
    ("num_slots", "replay"), [(1, "exact"), (3, "exact"), (1, "bounded"), (3, "bounded")]
)
def test_b01_b02_the_slot_s_last_tenant(
    network: Network, tokenizer: Tokenizer, num_slots: int, replay: PrefixReplay
) -> None:
    """B01, B02: behind a hit the window of whoever had the slot before is read, or an empty one."""
    prompt, other = some_ids(1, 300), some_ids(2, 200)
    cold = ask(make_engine(network), tokenizer, prompt).outputs
    engine = make_engine(network, prefix=replay, num_slots=num_slots)
    for turn in range(3):
        output = ask(engine, tokenizer, prompt)
        if turn == 1 and replay == "bounded":
            cold = output.outputs  # another answer, but always the same
        assert output.outputs == cold
        assert output.outputs[0].finish_reason == "length"
        assert output.num_cached_tokens == 256 * (turn > 0)
        ask(engine, tokenizer, other)
        unused = set(range(64)) - set(kept(engine).values())
        poison(engine.worker.pools, range(num_slots), unused)


def test_b05_however_much_is_there(network: Network, tokenizer: Tokenizer) -> None:
    """B04, B05: an answer or its log-probabilities depend on how many blocks were found."""
    prompt = some_ids(3, 450)
    cold = ask(make_engine(network), tokenizer, prompt).outputs
    engine = make_engine(network, prefix="exact", max_model_len=512)
    ask(engine, tokenizer, prompt)
    for num_found in (3, 2, 1, 0):
        keys = found_keys(engine, prompt)
        engine.scheduler.memory.blocks.forget(keys[num_found:])
        output = ask(engine, tokenizer, prompt)
        assert output.num_cached_tokens == 128 * num_found
        assert output.outputs == cold


def found_keys(engine: Engine, prompt: list[int]) -> list[bytes]:
    """The keys of a prompt's blocks that are found."""
    memory = engine.scheduler.memory
    return prefix_of(engine).find(Request("x", prompt, Limits(1)), memory.blocks).keys


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_b09_b10_what_comes_back_from_a_tier(
    network: Network, tokenizer: Tokenizer, num_drafts: int
) -> None:
    """A14, B09, B10: nothing comes back where there is a draft module, or a part of a block does
    not, or comes to another place."""
    drafts = Drafts(num_drafts, "fixed" if num_drafts else "off")
    prompts = [some_ids(seed, 300) for seed in range(4)]
    cold_engine = make_engine(network)
    cold = [ask(cold_engine, tokenizer, prompt).outputs for prompt in prompts]
    tiers = host_tiers(network, 100)
    engine = make_engine(network, prefix="exact", tiers=tiers, num_blocks=5, drafts=drafts)
    assert tiers.host is not None
    blocks = engine.scheduler.memory.blocks
    first: dict[bytes, tuple[int, bytes]] = {}
    num_moved = 0
    for prompt, expected in [*zip(prompts, cold, strict=True)] * 2:
        assert ask(engine, tokenizer, prompt).outputs == expected
        places = kept(engine)
        for key, blob in contents(engine).items():
            place, content = first.setdefault(key, (places[key], blob))
            num_moved += place != places[key]
            assert blob == content == tiers.host._blobs[key]
        # Only the bytes in the tier can bring them back.
        blocks.clear()
        blocks.free(blocks.allocate(1) or [])  # the next request gets others
        poison(engine.worker.pools, range(8), range(5))
    assert engine.stats().host_hit_tokens_total == 4 * 256
    assert num_moved > 0


@pytest.mark.parametrize("is_ahead", [False, True])
def test_b11_only_what_stays_is_found(
    network: Network, tokenizer: Tokenizer, is_ahead: bool
) -> None:
    """B11: a block with drafts that were rejected is found by whoever comes next."""
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    jobs = [Job(some_ids(seed, 100 + seed), params) for seed in range(4)]
    plain = make_engine(network, prefix="exact")
    expected = run_jobs(plain, tokenizer, jobs)
    tiers = host_tiers(network, 100)
    assert tiers.host is not None
    engine = make_engine(
        network, prefix="exact", drafts=Drafts(3), is_ahead=is_ahead, num_rows=64, tiers=tiers
    )
    play(engine, wrong(answers_of(expected)))
    outputs = run_jobs(engine, tokenizer, jobs)
    assert [one.outputs[0].token_ids for one in outputs] == [
        one.outputs[0].token_ids for one in expected
    ]
    assert engine.stats().verified_total > 30
    assert engine.stats().accepted_total == 0
    assert contents(engine) == contents(plain) == dict(tiers.host._blobs) != {}
    engine.close()


@pytest.mark.parametrize("num_cycles", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_k06_a_tier_after_preemption_and_abort(network: Network, num_cycles: int) -> None:
    """K06: what was copied of requests that were preempted and aborted stays in host memory."""
    tiers = host_tiers(network, 4)
    assert tiers.host is not None
    engine = make_engine(network, prefix="exact", tiers=tiers, num_blocks=3, max_model_len=384)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    used, num_preempted = [], 0
    for cycle in range(num_cycles):
        for number in range(3):
            engine.submit(str(number), some_ids(3 * cycle + number, 124), params)
        before = engine.stats().preemptions_total
        for _ in range(8):
            engine.step()
        num_preempted += engine.stats().preemptions_total > before
        for number in range(3):
            engine.abort(str(number))
        engine.step()
        assert_empty(engine)
        used.append(engine.stats().host_bytes)
        assert not engine.scheduler.memory.to_save
        assert not engine.scheduler.memory.to_load
        assert not engine._tiering._saves
    assert num_preempted >= num_cycles * 4 // 5
    assert 0 < max(used) <= tiers.host.capacity_bytes
    assert used[-1] == used[5], "it grows"


OTHER_PAIRS = [(False, 0), (False, 3), (True, 0)]


@pytest.mark.parametrize(
    ("is_ahead", "num_drafts"),
    [(True, 3), *(pytest.param(*one, marks=pytest.mark.slow) for one in OTHER_PAIRS)],
)
def test_k09_pairs_of_features(
    network: Network, tokenizer: Tokenizer, is_ahead: bool, num_drafts: int
) -> None:
    """K09: a cache together with chunks, drafts or asynchronous steps is right for one request and
    wrong for eight."""
    trunk = some_ids(5, 260)
    jobs = [
        Job([*trunk[: 130 * (1 + n % 2)], *some_ids(n, 5 + n)], PARAMS, arrival=2 * n)
        for n in range(8)
    ]
    solo = make_engine(network)
    expected = [run_jobs(solo, tokenizer, [dataclasses.replace(job, arrival=0)]) for job in jobs]
    drafts = Drafts(num_drafts, "fixed" if num_drafts else "off")
    for num_rows, num_jobs in ((50, 8), (512, 2), (512, 8)):
        engine = make_engine(
            network, prefix="exact", is_ahead=is_ahead, drafts=drafts, num_rows=num_rows
        )
        outputs = run_jobs(engine, tokenizer, jobs[:num_jobs])
        assert [one.outputs for one in outputs] == [one.outputs for (one,) in expected[:num_jobs]]
        assert engine.stats().hit_tokens_total > 0 or num_jobs == 2
        engine.close()


# ---- gauges and counters -------------------------------------------------------------------------

GAUGES = ("running", "waiting", "free_blocks", "kept_blocks", "free_slots")


def check_gauges(engine: Engine, before: EngineStats) -> EngineStats:
    """Gauges are what the pools say; counters never fall. Returns them as they are."""
    now = engine.stats()
    scheduler, memory = engine.scheduler, engine.scheduler.memory
    owned = {block_id for request in scheduler.running for block_id in request.block_ids}
    assert (now.running, now.waiting) == (len(scheduler.running), len(scheduler.waiting))
    assert now.blocks - now.free_blocks == len(owned)
    assert now.slots - now.free_slots == now.running
    assert now.kept_blocks == len(set(kept(engine).values()) - owned) <= now.free_blocks
    assert (now.blocks, now.slots) == (memory.blocks.num_blocks, memory.slots.num_slots)
    host = None if memory.prefix is None else prefix_of(engine).tiers
    if host is not None and host.host is not None:
        assert now.host_bytes == sum(map(len, host.host._blobs.values()))
    for name, value in dataclasses.asdict(now).items():
        if name.endswith("_total"):
            assert value >= getattr(before, name), f"{name} falls"
    return now


@pytest.mark.parametrize("is_ahead", [pytest.param(False, marks=pytest.mark.slow), True])
def test_o03_gauges_come_back(network: Network, tokenizer: Tokenizer, is_ahead: bool) -> None:
    """O03: memory in use reads zero, or what it was before requests ended, were aborted, failed or
    were preempted; a counter falls."""
    tiers = host_tiers(network, 6)
    sizes: dict[str, Any] = {"num_blocks": 5, "num_slots": 4, "max_model_len": 512}
    engine = make_engine(
        network, prefix="exact", tiers=tiers, is_ahead=is_ahead, drafts=Drafts(3), **sizes
    )
    long = dataclasses.replace(PARAMS, max_tokens=140)
    trunk = some_ids(9, 128)
    jobs = [
        Job([*trunk, 7, 8], PARAMS),
        *(Job(some_ids(n, 120), long, arrival=1) for n in range(3)),
        Job([*trunk, 7, 9, 10], long, arrival=10, aborted=14),
        Job(some_ids(6, 250), long, arrival=2, aborted=4),
        Job([*trunk, 7, 8], PARAMS, arrival=30),
    ]
    run = Run(engine, tokenizer, jobs)
    stats, met = engine.stats(), set()
    for number in run.steps():
        stats = check_gauges(engine, stats)
        met |= {name for name in GAUGES if getattr(stats, name)}
        if number == 20 and (running := engine.scheduler.running):
            break_row(engine, running[0].block_ids[-1])
    assert met == set(GAUGES)
    assert stats.preemptions_total > 0
    assert stats.host_hit_tokens_total + stats.hit_tokens_total > 0
    reasons = [output.outputs[0].finish_reason for output in run.outputs()]
    assert {"length", "error"} <= set(reasons)
    assert_empty(engine)
    for _ in range(2):
        engine.step()
    stats = check_gauges(engine, stats)
    assert (stats.running, stats.waiting) == (0, 0)
    assert (stats.free_blocks, stats.free_slots) == (stats.blocks, stats.slots)
    engine.close()


def break_row(engine: Engine, block_id: int) -> None:
    """The newest entries of somebody are not finite from now on."""
    for pool in engine.worker.pools.entries.values():
        pool[block_id] = torch.nan
