"""Callers who leave early, come back, or come when all is closed: nothing runs for nobody."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.config.engine import EngineArgs
from deepinfer.engine.loading import load_model
from deepinfer.errors import ConfigError, RequestError
from tests.laws.engines import assert_empty

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPTS = ["The lamp", "One winter the sea", "x"]


@pytest.fixture
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, device="cpu", dtype="float32", max_num_seqs=4, max_model_len=200) as made:
        yield made


@pytest.fixture(autouse=True)
def all_is_back(llm: LLM) -> Iterator[None]:
    """After every test each block and slot is free, and the engine still works."""
    yield
    assert_empty(llm._requests.model.engine)
    assert len(llm.generate("x", GREEDY)[0].token_ids) == 6


def interrupted_at(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which is left by an interrupt in its call number `call`."""
    calls = 0

    def wrapped(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return function(*args, **options)

    return wrapped


@pytest.mark.parametrize("place", ["run", "head", "submit", "start_sample", "add"])
def test_interrupt(place: str, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """K04: after an interrupt requests run on, keep their memory, or nothing runs any more."""
    engine = llm._requests.model.engine
    owner: Any = {
        "run": engine.worker.network,
        "head": engine.worker.network.head,
        "submit": engine,
        "start_sample": engine.worker,
        "add": engine.scheduler,
    }[place]
    name = {"head": "op"}.get(place, place)
    expected = [one.token_ids for one in llm.generate(PROMPTS, GREEDY)]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted_at(2, getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
    assert_empty(engine)
    assert [one.token_ids for one in llm.generate(PROMPTS, GREEDY)] == expected


def test_interrupted_stream(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """K04: the same while a text streams."""
    network = llm._requests.model.engine.worker.network
    with monkeypatch.context() as patch:
        patch.setattr(network, "run", interrupted_at(3, network.run))
        with pytest.raises(KeyboardInterrupt):
            list(llm.stream("The lamp", GREEDY))
    assert_empty(llm._requests.model.engine)


@pytest.mark.parametrize("place", ["run", "layer"])
def test_interrupt_beside_an_open_stream(
    place: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K01, K04: the stream loses a token, says one twice, or takes over half a step's memory."""
    params = SamplingParams(seed=4, temperature=1.3, max_tokens=12, frequency_penalty=0.5)
    expected = "".join(llm.stream(PROMPTS[1], params))
    stream = llm.stream(PROMPTS[1], params)
    text = next(stream) + next(stream)
    network = llm._requests.model.engine.worker.network
    owner, name = (network, "run") if place == "run" else (network.layers[5].attn, "forward")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, interrupted_at(3, getattr(owner, name)))
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, GREEDY)
    assert text + "".join(stream) == expected


@pytest.mark.parametrize("num_pieces", [0, 1, 3])
def test_stream_that_is_left(num_pieces: int, llm: LLM) -> None:
    """K04: a stream that is closed, or just forgotten, keeps its blocks."""
    for leave in (lambda stream: stream.close(), lambda stream: None):
        stream = llm.stream("The lamp", GREEDY)
        for _ in range(num_pieces):
            next(stream)
        leave(stream)
        del stream
        assert_empty(llm._requests.model.engine)


def test_streams_take_turns(llm: LLM) -> None:
    """Open streams lose pieces to each other, or to a call of generate between them."""
    drawn = SamplingParams(seed=3, max_tokens=9, temperature=1.4, stop=["qqq"])
    expected = [list(llm.stream(prompt, drawn)) for prompt in PROMPTS]
    batch = llm.generate(PROMPTS, drawn)
    streams = [llm.stream(prompt, drawn) for prompt in PROMPTS]
    pieces: list[list[str]] = [[next(stream)] for stream in streams]
    pieces[0].append(next(streams[0]))
    assert llm.generate(PROMPTS, drawn) == batch
    for _ in range(3):
        for stream, found in zip(streams[::-1], pieces[::-1], strict=True):
            found.append(next(stream))
    for stream, found in zip(streams, pieces, strict=True):
        found.extend(stream)
    assert ["".join(found) for found in pieces] == ["".join(found) for found in expected]


def test_a_stream_that_leaves_others(llm: LLM) -> None:
    """K04: closing one of two streams ends the other, or takes its text along."""
    expected = "".join(llm.stream(PROMPTS[0], GREEDY))
    stays, goes = (llm.stream(prompt, GREEDY) for prompt in PROMPTS[:2])
    text = next(stays)
    next(goes)
    goes.close()
    assert text + "".join(stays) == expected


def test_refused_streams(llm: LLM) -> None:
    """What a stream cannot do is found out at the first piece, with a request left behind."""
    for prompt, params, field in (
        ("x", SamplingParams(n=2), "n"),
        ("", GREEDY, "prompt"),
        ([5] * 200, GREEDY, "prompt"),
        ([-1], GREEDY, "prompt_token_ids"),
        ("x", SamplingParams(stop_token_ids=[512]), "stop_token_ids"),
    ):
        with pytest.raises(RequestError) as caught:
            next(llm.stream(prompt, params))
        assert caught.value.field == field


def test_errors_stand_in_their_places(llm: LLM) -> None:
    """A refused prompt shifts the results that follow it."""
    prompts = [[5, 6], [], [7] * 200, [8, 9], [512], [10]]
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=GREEDY)
    fields = [output.error.field if output.error else None for output in outputs]
    assert fields == [None, "prompt_token_ids", "prompt", None, "prompt_token_ids", None]
    for place in (0, 3, 5):
        (alone,) = llm.generate(prompt_token_ids=[prompts[place]], sampling_params=GREEDY)
        assert outputs[place] == alone
    with pytest.raises(RequestError):
        _ = outputs[1].text


@pytest.mark.parametrize(
    ("use_tqdm", "terminal", "shown"),
    [(True, True, True), (False, True, False), (True, False, False)],
)
def test_progress_bar(
    use_tqdm: bool,
    terminal: bool,
    shown: bool,
    llm: LLM,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bar fills the log of a program that writes to a file, or does not count to the end."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    llm.generate(PROMPTS, GREEDY, use_tqdm=use_tqdm)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert ("3/3" in printed.err) == shown
    assert bool(printed.err) == shown


def test_closed(tiny_dir: Path) -> None:
    """K04: a closed model is used as if it were there, or a stream hangs that was open."""
    made = LLM(tiny_dir, device="cpu", dtype="float32")
    stream = made.stream("x", GREEDY)
    next(stream)
    made.close()
    for use in (
        lambda: made.generate("x", GREEDY),
        lambda: next(made.stream("x", GREEDY)),
        lambda: next(stream),
        made.get_tokenizer,
        lambda: made.options,
    ):
        with pytest.raises(RequestError, match="closed"):
            use()
    stream.close()
    made.close()


@pytest.mark.parametrize(
    "name",
    ["tokens_per_block", "lookahead_tokens", "ignore_len", "offline_inference", "decode_sequence"],
)
def test_options_of_the_same_name_elsewhere(name: str, tiny_dir: Path) -> None:
    """An option of DeepInfer that has no meaning here is taken in silence."""
    with pytest.raises(ConfigError) as caught:
        LLM(tiny_dir, **{name: 1})
    assert caught.value.where == name
    assert caught.value.hint.startswith("leave it out: ")


def test_memory_decides_the_longest(tiny_dir: Path) -> None:
    """A11, M07: what fits is refused, or what does not fit is taken and never ends."""
    args = EngineArgs(device="cpu", dtype="float32", max_num_seqs=2, kv_cache_bytes=200_000)
    model = load_model(tiny_dir, args)
    longest = model.options.max_model_len
    assert longest < model.config.max_position_embeddings
    with LLM(
        tiny_dir, device="cpu", dtype="float32", max_num_seqs=2, kv_cache_bytes=200_000
    ) as made:
        fits, not_quite = made.generate(
            prompt_token_ids=[[5] * (longest - 1), [5] * longest], sampling_params=GREEDY
        )
        assert_empty(made._requests.model.engine)
    assert (len(fits.token_ids), fits.finish_reason) == (1, "length")
    assert not_quite.error is not None
    assert str(longest) in not_quite.error.what


def test_callers_in_several_threads(llm: LLM) -> None:
    """Two threads step the engine at once, and one of them meets an assertion of ours."""
    expected = [one.token_ids for one in llm.generate(PROMPTS * 2, GREEDY)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda prompt: llm.generate(prompt, GREEDY)[0], PROMPTS * 2))
    assert [one.token_ids for one in found] == expected
