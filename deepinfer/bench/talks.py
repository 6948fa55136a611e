"""`deepinfer bench chat`: users who talk in turns, with and without what earlier turns left.

Random tokens stand for words: what is measured is how little of a growing conversation runs again.
Each way to keep it has an engine of its own; the host's and the disk's get a pool of blocks that is
too small for all talks, so that the tiers behind it matter. Knows engines and tokens, not texts.
"""

import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from deepinfer.bench.offline import random_prompts
from deepinfer.cache.layout import (
    BLOCK_TOKENS,
    block_parts,
    blocks_for,
    slot_parts,
    total_bytes,
)
from deepinfer.config.engine import EngineArgs
from deepinfer.config.model import ModelConfig
from deepinfer.config.words import Storage
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import LoadedModel, load_model
from deepinfer.sampling_params import SamplingParams


@dataclass(frozen=True)
class Talks:
    """What is asked. All users speak at once, `num_turns` times; each talk begins with the same
    system prompt. Lengths in tokens."""

    num_users: int = 8
    num_turns: int = 4
    system_len: int = 1024
    turn_len: int = 128
    answer_len: int = 32

    @property
    def longest(self) -> int:
        """Tokens of a whole talk."""
        return self.system_len + self.num_turns * (self.turn_len + self.answer_len)


@dataclass(frozen=True)
class TalksResult:
    """first_token_s: of each turn of each user, from its arrival. hit_share: of all prompt tokens.
    num_rows: prompt tokens that ran, replayed ones included."""

    wall_s: float
    first_token_s: list[float]
    num_tokens: int
    hit_share: float
    num_rows: int


def run_talks(engine: Engine, config: ModelConfig, talks: Talks, seed: int = 0) -> TalksResult:
    """All turns of all users, the users of a turn in an order that differs from turn to turn."""
    (system,) = random_prompts(config, 1, talks.system_len, seed)
    spoken = [list(system) for _ in range(talks.num_users)]
    params = SamplingParams(temperature=1.0, max_tokens=talks.answer_len, ignore_eos=True)
    first_token_s: list[float] = []
    before, num_tokens, start = engine.stats(), 0, time.perf_counter()
    for turn in range(talks.num_turns):
        said = random_prompts(config, talks.num_users, talks.turn_len, seed + 1 + turn)
        order = random.Random(turn).sample(range(talks.num_users), talks.num_users)
        arrived, waiting = time.perf_counter(), set(order)
        for user in order:
            spoken[user] += said[user]
            engine.submit(f"{turn} {user}", list(spoken[user]), params, seed=seed + user)
        while engine.has_work:
            for delta in engine.step():
                user = int(delta.request_id.split()[1])
                if delta.token_id is not None:
                    spoken[user].append(delta.token_id)
                    num_tokens += 1
                    if user in waiting:
                        waiting.remove(user)
                        first_token_s.append(time.perf_counter() - arrived)
    wall_s, after = time.perf_counter() - start, engine.stats()
    num_prompt = after.prompt_tokens_total - before.prompt_tokens_total
    num_hit = after.hit_tokens_total - before.hit_tokens_total
    num_again = after.replayed_tokens_total - before.replayed_tokens_total
    return TalksResult(
        wall_s, first_token_s, num_tokens, num_hit / num_prompt, num_prompt - num_hit + num_again
    )


def talk_lines(model: str | None, asked: Mapping[str, Any], talks: Talks) -> Iterator[str]:
    """A line for each way to keep what was computed; all in one run.

    model: as of `load_model`. asked: other engine options; prefix_replay is bounded, unless they
    say otherwise: at these lengths an exact one runs nearly all again. Raises ConfigError for a
    model whose sequences are shorter than a talk.
    """
    options = {
        **asked,
        "prefix_replay": asked.get("prefix_replay") or "bounded",
        "max_model_len": talks.longest + 1,
        "max_num_seqs": talks.num_users,
    }
    yield (
        f"{talks.num_users} users, {talks.num_turns} turns, {talks.system_len:,} tokens before the "
        f"first, {talks.turn_len} tokens a turn, answers of {talks.answer_len}; "
        f"prefix_replay {options['prefix_replay']}"
    )
    yield (
        "kept in              hit rate   prompt rows   first token, ms: median   worst   tokens/s"
    )
    few: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        host = {"kv_host_bytes": 2**30}
        disk = {"kv_disk_dir": folder, "kv_disk_bytes": 2**30}
        ways: list[tuple[str, dict[str, Any], bool]] = [
            ("nothing", {"enable_prefix_caching": False}, False),
            ("device", {}, False),
            ("device, too small", {}, True),
            ("the same, and host", host, True),
            ("the same, and disk", disk, True),
            ("disk, after restart", disk, True),
        ]
        for name, more, is_few in ways:
            loaded = load_model(model, EngineArgs(**{**options, **more, **(few if is_few else {})}))
            few = {"kv_cache_bytes": _few_bytes(loaded.config, talks)}
            yield f"{name:19}  {_measured(loaded, talks)}"


def _measured(loaded: LoadedModel, talks: Talks) -> str:
    engine = loaded.engine
    try:
        # Libraries make their plans at the first call; these tokens occur in no talk.
        run_talks(engine, loaded.config, Talks(2, 1, 16, 16, 4), seed=1000)
        found = run_talks(engine, loaded.config, talks)
    finally:
        engine.close()
    first = [1000 * one for one in found.first_token_s]
    return (
        f"{found.hit_share:8.1%}   {found.num_rows:11,}   {median(first):23,.0f}   "
        f"{max(first):5,.0f}   {found.num_tokens / found.wall_s:8.1f}"
    )


def _few_bytes(config: ModelConfig, talks: Talks) -> int:
    """For slots of all users, and half the blocks that all talks have, shared ones counted once."""
    storage: Storage = "bfloat16"
    longest, shared = blocks_for(talks.longest + 1), talks.system_len // BLOCK_TOKENS
    num_blocks = max(longest, (shared + talks.num_users * (longest - shared)) // 2)
    slots = talks.num_users * total_bytes(slot_parts(config, storage))
    return slots + num_blocks * total_bytes(block_parts(config, storage))
