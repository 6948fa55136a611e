"""The prefix cache: by exact replay, warm = cold = preempted, to the bit.

Requests are trees: prompts that share beginnings of any length, and go on where others ended.
"""

import copy
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deepinfer.cache.disk_tier import DiskTier
from deepinfer.cache.host_tier import HostTier
from deepinfer.cache.tiers import Tiers
from deepinfer.engine.engine import Engine
from deepinfer.model.network import Network
from deepinfer.oracle.model import Attention, Oracle, Trace
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.tokenizer import Tokenizer
from deepinfer.worker.blobs import blob_bytes
from deepinfer.worker.pools import make_pools
from tests.laws.engines import Drafts, Job, assert_empty, make_engine, run_jobs
from tests.laws.test_engine import some_ids

PIECES = [some_ids(seed, 400) for seed in range(3)]
# Around the ends of blocks, of windows, and of what an exact replay runs again.
CUTS = (1, 100, 127, 128, 129, 140, 200, 255, 256, 257, 300, 384, 390)
ASKS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 2},
    {"temperature": 1.0, "seed": 5, "logprobs": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 0.8, "top_p": 0.9, "seed": 7, "n": 2},
]


@pytest.fixture(scope="module")
def network(tiny_networks: dict[str, Network]) -> Network:
    return tiny_networks["fp32"]


def prompt_of(path: tuple[int, ...], cut: int) -> list[int]:
    """`cut` tokens of a path: 100 of each piece, those of a repeated piece going on."""
    tokens: list[int] = []
    used = [0, 0, 0]
    for piece in path:
        tokens += PIECES[piece][used[piece] : used[piece] + 100]
        used[piece] += 100
    return tokens[:cut]


@st.composite
def jobs_of_a_tree(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for number in range(draw(st.integers(3, 6))):
        path = (0, *draw(st.tuples(*[st.integers(0, 1)] * 3)))
        prompt = prompt_of(path, draw(st.sampled_from(CUTS)))
        ask = draw(st.sampled_from(ASKS))
        arrival = draw(st.integers(0, 6)) + 4 * number
        aborted = draw(st.sampled_from([None, None, None, arrival + 3]))
        params = SamplingParams(**ask, max_tokens=draw(st.integers(1, 12)), ignore_eos=True)
        jobs.append(Job(prompt, params, arrival, aborted))
    return jobs


@pytest.fixture(scope="module")
def cold(network: Network, tokenizer: Tokenizer) -> Any:
    @cache
    def run(prompt: tuple[int, ...], params: SamplingParams) -> RequestOutput:
        (output,) = run_jobs(make_engine(network), tokenizer, [Job(list(prompt), params)])
        return output

    return run


def check(output: RequestOutput, expected: RequestOutput, job: Job) -> None:
    for one, other in zip(output.outputs, expected.outputs, strict=True):
        if job.aborted is not None:
            assert one.token_ids == other.token_ids[: len(one.token_ids)]
        else:
            assert (one.token_ids, one.logprobs, one.text) == (
                other.token_ids,
                other.logprobs,
                other.text,
            )


@settings(max_examples=5, deadline=None, derandomize=True)
@given(
    jobs=jobs_of_a_tree(),
    num_blocks=st.sampled_from([5, 6, 9, 64]),
    num_rows=st.sampled_from([30, 512]),
    num_slots=st.sampled_from([2, 8]),
    num_drafts=st.sampled_from([0, 3]),
    is_ahead=st.booleans(),
    tier=st.sampled_from(["none", "host", "disk"]),
)
def test_warm_is_cold(
    network: Network,
    tokenizer: Tokenizer,
    cold: Any,
    jobs: list[Job],
    num_drafts: int,
    tier: str,
    **sizes: Any,
) -> None:
    """B01, B04, B05, B12, B13: an answer depends on what was cached, with chunks, evictions,
    preemption, aborts, drafts and steps that overlap."""
    drafts = Drafts(num_drafts, "fixed" if num_drafts else "off")
    with TemporaryDirectory() as folder:
        # With a disk, the second engine finds what the first left.
        for _ in range(2 if tier == "disk" else 1):
            tiers = tiers_of(network, tier, Path(folder))
            engine = make_engine(network, prefix="exact", drafts=drafts, tiers=tiers, **sizes)
            for _ in range(2):
                outputs = run_jobs(engine, tokenizer, jobs)
                for job, output in zip(jobs, outputs, strict=True):
                    check(output, cold(tuple(job.prompt), job.params), job)
            engine.close()


def tiers_of(network: Network, tier: str, folder: Path, num_blobs: int = 6) -> Tiers | None:
    """A tier of `num_blobs` blocks; "none" is None."""
    num_bytes = blob_bytes(make_pools(network.setup.config, 1, 1))
    if tier == "host":
        return Tiers(num_bytes, host=HostTier(num_blobs * num_bytes))
    if tier == "disk":
        return Tiers(num_bytes, disk=DiskTier(folder, num_blobs * (num_bytes + 200), b"test"))
    return None


def hits(engine: Engine) -> tuple[int, int]:
    """Tokens that were found, and of these run again."""
    prefix = engine.scheduler.memory.prefix
    assert prefix is not None
    return prefix.stats.num_hit, prefix.stats.num_replayed


def ask(engine: Engine, tokenizer: Tokenizer, prompt: list[int], **more: Any) -> RequestOutput:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 4, "ignore_eos": True, **more})
    (output,) = run_jobs(engine, tokenizer, [Job(prompt, params)])
    assert_empty(engine)
    return output


def test_what_is_found(network: Network, tokenizer: Tokenizer) -> None:
    """B07, B08: hits vanish though the pool has room, or a request evicts what it looks up."""
    prompt = some_ids(9, 300)
    engine = make_engine(network, prefix="bounded", num_blocks=6)
    window = network.setup.config.sliding_window
    assert ask(engine, tokenizer, prompt).num_cached_tokens == 0
    assert ask(engine, tokenizer, prompt).num_cached_tokens == 256
    assert hits(engine) == (256, window)
    assert ask(engine, tokenizer, prompt[:129]).num_cached_tokens == 128
    # The prompt is found to its last token, which runs again, for what follows it is asked.
    assert ask(engine, tokenizer, prompt[:128]).num_cached_tokens == 128
    assert ask(engine, tokenizer, prompt[:127]).num_cached_tokens == 0
    other = some_ids(10, 300)
    assert ask(engine, tokenizer, other).num_cached_tokens == 0
    assert ask(engine, tokenizer, prompt).num_cached_tokens == 256
    assert ask(engine, tokenizer, other).num_cached_tokens == 256


def test_answers_are_found_too(network: Network, tokenizer: Tokenizer) -> None:
    """The next turn of a talk computes the last answer again."""
    engine = make_engine(network, prefix="bounded")
    prompt = some_ids(3, 100)
    said = ask(engine, tokenizer, prompt, max_tokens=60).outputs[0].token_ids
    assert ask(engine, tokenizer, [*prompt, *said, 5, 6]).num_cached_tokens == 128


def test_salts_keep_apart(network: Network, tokenizer: Tokenizer) -> None:
    """A tenant finds what another one said, or sees by the time that somebody said it."""
    engine = make_engine(network, prefix="bounded")
    prompt = some_ids(4, 300)
    found = [
        ask(engine, tokenizer, prompt, cache_salt=salt).num_cached_tokens
        for salt in ("a", "b", None, "", "a", "b", None, "")
    ]
    assert found == [0, 0, 0, 0, 256, 256, 256, 256]


def test_prompt_logprobs_take_no_hit(network: Network, tokenizer: Tokenizer) -> None:
    """Scores of prompt tokens are missing, for no row ran for them."""
    engine = make_engine(network, prefix="bounded")
    prompt = some_ids(5, 300)
    cold = ask(engine, tokenizer, prompt, prompt_logprobs=1)
    warm = ask(engine, tokenizer, prompt, prompt_logprobs=1)
    assert warm.num_cached_tokens == 0
    assert warm.prompt_logprobs == cold.prompt_logprobs


def test_shared_rows_are_not_written(network: Network, tokenizer: Tokenizer) -> None:
    """B12: a replay writes what others read."""
    engine = make_engine(network, prefix="bounded")
    pools = engine.worker.pools
    prompt = some_ids(6, 300)
    ask(engine, tokenizer, prompt)
    kept = [id_ for id_ in range(64) if engine.scheduler.memory.blocks.key(id_) is not None]
    assert len(kept) == 2
    before = [pool[kept].clone() for pool in (*pools.entries.values(), *pools.keys.values())]
    for cut in (128, 129, 250, 256, 257, 300):
        ask(engine, tokenizer, [*prompt[:cut], *some_ids(cut, 20)])
    after = [pool[kept] for pool in (*pools.entries.values(), *pools.keys.values())]
    assert all(bool((a == b).all()) for a, b in zip(before, after, strict=True))


def test_talks_take_turns(network: Network, tokenizer: Tokenizer) -> None:
    """B07: talks that take turns find nothing of what they said before."""
    engine = make_engine(network, prefix="bounded", num_blocks=64)
    rng = random.Random(0)
    said = {number: some_ids(number, 130) for number in range(8)}
    for turn in range(4):
        for tokens in said.values():
            output = ask(engine, tokenizer, tokens)
            assert output.num_cached_tokens == (len(tokens) - 1) // 128 * 128 * (turn > 0)
            tokens += [*output.outputs[0].token_ids, *rng.choices(range(5, 300), k=20)]


class Replayed(Attention):
    """The oracle's attention after a bounded hit of `num_hit` tokens.

    Rows from `start` on see no window key from before it, and the entries of the hit are those that
    a whole computation, `whole`, made.
    """

    def __init__(self, oracle: Oracle, whole: Trace, num_hit: int) -> None:
        super().__init__(oracle.config, oracle.weights)
        self.whole, self.num_hit = whole, num_hit
        self.start = num_hit - oracle.config.sliding_window

    def _attend(
        self, prefix: str, latent: Tensor, keys: Tensor, allowed: Tensor, *rest: Any
    ) -> Any:
        allowed = allowed.clone()
        allowed[self.start :, : self.start] = False
        return super()._attend(prefix, latent, keys, allowed, *rest)

    def _update_entries(self, layer: int, x: Tensor, sources: Any, trace: Trace) -> None:
        super()._update_entries(layer, x, sources, trace)
        num_kept = self.num_hit // self.config.compress_ratios[layer]
        if layer in self.config.kv_source_layer_ids:
            sources.entries[:num_kept] = self.whole.compressed_kv[layer][:num_kept]
            sources.index_keys[:num_kept] = self.whole.index_keys[layer][:num_kept]


@pytest.mark.parametrize("num_prompt", [129, 140, 200, 256, 300])
def test_bounded_is_the_oracle_under_the_same_rule(
    exact: Network, exact_oracle: Oracle, tokenizer: Tokenizer, num_prompt: int
) -> None:
    """A hit's replay sees too much or too little, or pending halves and n-grams of its first rows
    are not those of the text."""
    engine = make_engine(exact, prefix="bounded", kept_as="float32")
    tokens = some_ids(11, num_prompt + 6)
    forced = {"golden_token_ids": tokens[num_prompt:], "max_tokens": 6, "logprobs": 3}
    ask(engine, tokenizer, tokens[:num_prompt])
    output = ask(engine, tokenizer, tokens[:num_prompt], **forced)
    num_hit = num_prompt // 128 * 128
    assert output.num_cached_tokens == num_hit
    whole = exact_oracle.forward(tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            exact_oracle, "attention", Replayed(exact_oracle, copy.deepcopy(whole), num_hit)
        )
        replayed = exact_oracle.forward(tokens)
    found = torch.tensor([one.logprob for one in output.outputs[0].logprobs or []])
    rows = slice(num_prompt - 1, num_prompt + 5)
    wanted = torch.tensor(tokens[num_prompt:])[:, None]
    logprobs = replayed.logits[rows].log_softmax(-1).gather(-1, wanted)[:, 0]
    assert torch.allclose(found, logprobs, atol=2e-4)
    # It would show: without the rule the numbers are others.
    others = whole.logits[rows].log_softmax(-1).gather(-1, wanted)[:, 0]
    assert not torch.allclose(logprobs, others, atol=2e-4)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("is_ahead", [False, True])
def test_tiers_give_back(
    network: Network, tokenizer: Tokenizer, tmp_path: Path, tier: str, is_ahead: bool
) -> None:
    """B09: a tier is written for ever and nothing comes back, or something else does."""
    prompts = [some_ids(seed, 300) for seed in range(4)]
    tiers = tiers_of(network, tier, tmp_path, 100)
    sizes = {"num_blocks": 4, "is_ahead": is_ahead}  # one request at a time
    cold_engine = make_engine(network)
    cold = [ask(cold_engine, tokenizer, prompt, logprobs=1).outputs for prompt in prompts]
    engine = make_engine(network, prefix="exact", tiers=tiers, **sizes)
    for _ in range(2):
        for prompt, expected in zip(prompts, cold, strict=True):
            assert ask(engine, tokenizer, prompt, logprobs=1).outputs == expected
        if tiers is not None and tiers.disk is not None:
            assert tiers.disk.flush(10)
    stats = engine.stats()
    from_tier = stats.host_hit_tokens_total if tier == "host" else stats.disk_hit_tokens_total
    assert from_tier == 3 * 256 + 256
    engine.close()


def test_a_disk_tier_survives(network: Network, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What was kept is lost with the process, or is found by another model."""
    prompt = some_ids(1, 300)
    found = []
    for _ in range(2):
        engine = make_engine(
            network, prefix="bounded", tiers=tiers_of(network, "disk", tmp_path, 100)
        )
        found.append(ask(engine, tokenizer, prompt).num_cached_tokens)
        engine.close()
    assert found == [0, 256]
    for file in tmp_path.rglob("*.kv"):
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
    engine = make_engine(network, prefix="bounded", tiers=tiers_of(network, "disk", tmp_path, 100))
    assert ask(engine, tokenizer, prompt).num_cached_tokens == 0
    assert ask(engine, tokenizer, prompt).num_cached_tokens == 256
    engine.close()
