"""Messages between the two processes: what is written is read, and little of it costs much."""

from dataclasses import fields
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer import SamplingParams
from deepinfer.errors import CheckpointError, ConfigError, DeepInferError, RequestError
from deepinfer.messages import Delta, EngineStats
from deepinfer.outputs import TokenLogprob
from deepinfer.server.wire import (
    Abort,
    Deltas,
    Failed,
    Finish,
    Frames,
    FromEngine,
    ModelInfo,
    Ready,
    Refused,
    Start,
    Stats,
    Submit,
    ToEngine,
    decode_from_engine,
    decode_to_engine,
    encode,
)
from tests.effort import effort

SCORED = TokenLogprob(7, -0.1234567890123, 3, ((7, -0.5), (9, -9999.0)))
FULL = Delta("17", 3, 5, SCORED, [SCORED, TokenLogprob(1, 0.0, 1)], "length", False, True, 5, 4, 99)
ALL_PARAMS = SamplingParams(
    temperature=0.1 + 0.2,
    top_p=0.5,
    top_k=3,
    min_p=0.01,
    presence_penalty=-2,
    frequency_penalty=2,
    repetition_penalty=1.25,
    logit_bias={0: -100, 5: 0.3},
    seed=2**64 - 1,
    n=8,
    max_tokens=2**31 - 1,
    min_tokens=3,
    stop=["é", "\0"],
    include_stop_str_in_output=True,
    stop_token_ids=[1, 2],
    logprobs=True,
    prompt_logprobs=0,
    golden_token_ids=[-1, 4],
    first_n_token_no_eos=1,
    max_thinking_tokens=0,
    so_args={"schema_type": "json", "schema": {"type": "object"}, "trigger_token_ids": [3]},
    cache_salt="",
)


def frame_of(message: ToEngine | FromEngine) -> bytes:
    (frame,) = Frames().feed(encode(message))
    return frame


@pytest.mark.parametrize(
    "message",
    [
        Start(None, {"seed": 2**64 - 1, "dtype": "float32", "replay": None}, True, "info"),
        Submit("a", [0, 1, 2**31 - 1], ALL_PARAMS, 2**64 - 1, "root ::= [a-ü]"),
        Submit("", [5], SamplingParams()),
        Submit("b", [5], SamplingParams(seed=-(2**63), ignore_eos=True, logprobs=False)),
        Submit("c", [5], SamplingParams(so_args={"schema_type": "json_object"}, temperature=0)),
        Abort("a"),
        Finish("a", 7),
    ],
    ids=lambda message: type(message).__name__,
)
def test_to_engine(message: ToEngine) -> None:
    """A field of a request changes on its way to the engine."""
    assert decode_to_engine(frame_of(message)) == message


def test_all_params_are_there() -> None:
    """A new parameter is not sent, and nobody notices: the list above has every one set."""
    unset = {f.name for f in fields(SamplingParams) if getattr(ALL_PARAMS, f.name) == f.default}
    assert unset == {"ignore_eos", "top_logprobs"}  # not beside so_args, and logprobs


@pytest.mark.parametrize(
    "message",
    [
        Ready(ModelInfo("/m", 640, 512, {"seed": None, "accept": "auto"}, [("find", 0.5)])),
        Deltas([Delta("1", 0), Delta("2", 1, 0, finish_reason="stop"), FULL]),
        Stats(EngineStats(running=3, disk_is_on=False, accepted_by_slot=(3, 2, 1))),
        Deltas([]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_from_engine(message: FromEngine) -> None:
    """News changes on its way: a log-probability loses digits, a flag its meaning."""
    assert decode_from_engine(frame_of(message)) == message


@pytest.mark.parametrize("kind", [ConfigError, CheckpointError, DeepInferError])
def test_failures(kind: type[DeepInferError]) -> None:
    """O05: why the engine failed is lost, or becomes an error of another kind."""
    found = decode_from_engine(frame_of(Failed(kind("what", where="dtype", hint="try"))))
    assert isinstance(found, Failed)
    assert type(found.error) is kind
    assert (found.error.what, found.error.where, found.error.hint) == ("what", "dtype", "try")


def test_refusals() -> None:
    """A refusal arrives without its field or its way out."""
    error = RequestError("too long", field="prompt", hint="shorten it")
    refused = decode_from_engine(frame_of(Refused("4", error)))
    deltas = decode_from_engine(frame_of(Deltas([Delta("4", 1, error=error)])))
    assert isinstance(refused, Refused)
    assert isinstance(deltas, Deltas)
    for found in (refused.error, deltas.deltas[0].error):
        assert isinstance(found, RequestError)
        assert (found.field, str(found)) == ("prompt", str(error))


@pytest.mark.parametrize(
    ("params", "field"),
    [({"stop": "a\ud800"}, "stop"), ({"cache_salt": "\udfff"}, "cache_salt")],
)
def test_half_characters(params: dict[str, Any], field: str) -> None:
    """Half of a surrogate pair, which JSON can spell, is a fault of the server instead of a 400."""
    with pytest.raises(RequestError) as caught:
        encode(Submit("a", [1], SamplingParams(**params)))
    assert caught.value.field == field


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_frames(bodies: list[bytes], data: st.DataObject) -> None:
    """Frames depend on where the stream was cut."""
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=9)))
    frames, found = Frames(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += frames.feed(stream[start:end])
    assert found == bodies


numbers = st.integers(0, 2**31 - 1)
reals = st.floats(allow_nan=False, allow_infinity=False)
scored = st.builds(
    TokenLogprob, numbers, reals, numbers, st.lists(st.tuples(numbers, reals)).map(tuple)
)


@given(
    st.lists(
        st.builds(
            Delta,
            st.text(st.characters(codec="utf-8")),
            numbers,
            st.none() | numbers,
            st.none() | scored,
            st.lists(scored, max_size=3),
            st.sampled_from([None, "stop", "length", "abort", "error"]),
            st.booleans(),
            st.booleans(),
            numbers,
            numbers,
            numbers,
        ),
        max_size=5,
    )
)
def test_any_delta(deltas: list[Delta]) -> None:
    """A rare value of a field does not survive."""
    assert decode_from_engine(frame_of(Deltas(deltas))) == Deltas(deltas)


def test_damage_is_refused() -> None:
    """Bytes of another version are taken for a message."""
    for frame in (b"", b"\x90", msgspec.msgpack.encode(["Deltas", [{"choice": 1}]]), b"\xc1"):
        with pytest.raises(msgspec.DecodeError):
            decode_from_engine(frame)


def test_cost_of_a_delta() -> None:
    """Deltas become so dear that the HTTP process spends its time on them: written and read, one
    takes about 1 us."""
    deltas = [Delta(str(1000 + n), 0, 70000 + n, None, [], None, True, True) for n in range(32)]
    with effort(10):
        for _ in range(4000):
            decode_from_engine(encode(Deltas(deltas))[4:])
