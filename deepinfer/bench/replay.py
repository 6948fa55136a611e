"""`deepinfer bench replay`: what a long prompt and a second turn cost under each rule of replay.

Knows engines and tokens. Rows are counted where they run, in the first and in the last layer.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import nn

from deepinfer.bench.offline import random_prompts
from deepinfer.config.engine import EngineArgs
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import load_model
from deepinfer.model.layer import Flow
from deepinfer.model.network import Network
from deepinfer.sampling_params import SamplingParams

PROMPT_LEN, NEW_LEN, ANSWER_LEN = 4096, 32, 32
_REPEATS = 3
_WAYS: tuple[dict[str, Any], ...] = (
    {"replay": "off", "prefix_replay": "bounded"},
    {"replay": "off", "prefix_replay": "exact"},
    {"replay": "mask", "prefix_replay": "bounded"},
    {"replay": "compact", "prefix_replay": "bounded"},
    {"replay": "compact", "prefix_replay": "exact"},
)


@dataclass
class RowCount:
    """Rows that ran in the first and in the last layer."""

    encoder: int = 0
    decoder: int = 0


@dataclass(frozen=True)
class Turn:
    """Seconds to the first token, and the rows of all until then."""

    first_token_s: float
    rows: RowCount


@contextmanager
def counted_rows(network: Network) -> Iterator[RowCount]:
    """Count the rows of the two halves while it is open."""
    count = RowCount()

    def encoder(_layer: nn.Module, _inputs: object, flow: Flow) -> None:
        count.encoder += len(flow.streams)

    def decoder(_layer: nn.Module, _inputs: object, flow: Flow) -> None:
        count.decoder += len(flow.streams)

    hooks = [
        network.layers[0].register_forward_hook(encoder),
        network.layers[-1].register_forward_hook(decoder),
    ]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


def take_turn(engine: Engine, prompt: list[int], salt: str) -> tuple[Turn, list[int]]:
    """(what the first token cost, the answer). salt: requests of another salt share nothing."""
    params = SamplingParams(temperature=0, max_tokens=ANSWER_LEN, ignore_eos=True, cache_salt=salt)
    token_ids: list[int] = []
    with counted_rows(engine.worker.network) as count:
        start = time.perf_counter()
        engine.submit("turn", prompt, params)
        turn = None
        while engine.has_work:
            token_ids += [one.token_id for one in engine.step() if one.token_id is not None]
            if turn is None and token_ids:
                rows = RowCount(count.encoder, count.decoder)
                turn = Turn(time.perf_counter() - start, rows)
    assert turn is not None, "the request ended without a token"
    return turn, token_ids


def replay_lines(model: str | None, asked: Mapping[str, Any]) -> Iterator[str]:
    """A line for each rule: a prompt that nobody knows, and the turn that follows its answer."""
    yield (
        f"a prompt of {PROMPT_LEN:,} tokens, an answer of {ANSWER_LEN}, then {NEW_LEN} tokens; "
        f"median of {_REPEATS}"
    )
    yield (
        "replay    prefix     cold: rows   decoder's        ms   "
        "second turn: rows   decoder's      ms   of the cold"
    )
    for way in _WAYS:
        length = PROMPT_LEN + 2 * ANSWER_LEN + NEW_LEN
        options = {**asked, **way, "max_model_len": length, "max_num_seqs": 1}
        loaded = load_model(model, EngineArgs(**options))
        turns: list[tuple[Turn, Turn]] = []
        for number in range(_REPEATS + 1):
            (prompt,) = random_prompts(loaded.config, 1, PROMPT_LEN, number)
            (new,) = random_prompts(loaded.config, 1, NEW_LEN, 100 + number)
            cold, answer = take_turn(loaded.engine, prompt, str(number))
            second, _ = take_turn(loaded.engine, [*prompt, *answer, *new], str(number))
            turns.append((cold, second))
        loaded.engine.close()
        colds, seconds = zip(*turns[1:], strict=True)  # the first warms up
        cold_ms, second_ms = (1000 * median(t.first_token_s for t in of) for of in (colds, seconds))
        rows, again = colds[0].rows, seconds[0].rows
        yield (
            f"{way['replay']:8}  {way['prefix_replay']:8}  {rows.encoder:11,}   "
            f"{rows.decoder:9,}   {cold_ms:7,.0f}   {again.encoder:17,}   {again.decoder:9,}   "
            f"{second_ms:5,.0f}   {second_ms / cold_ms:11.1%}"
        )
