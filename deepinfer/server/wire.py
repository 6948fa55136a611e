"""What the HTTP process and the engine process say to each other, and how it is written down.

Knows the messages, their bytes, and where one ends. Does not know sockets, processes, or what a
message does.

A message is a msgpack array behind its length, 4 bytes, big-endian. Both ends are always of one
version of this package, so nothing is negotiated and unknown fields do not exist. Text never
crosses: prompts and answers are token ids.
"""

from array import array
from collections.abc import Callable
from dataclasses import MISSING, asdict, fields
from typing import Any

import msgspec

from deepinfer.errors import (
    CheckpointError,
    ConfigError,
    DeepInferError,
    DeviceError,
    RequestError,
)
from deepinfer.messages import Delta, EngineStats
from deepinfer.sampling_params import SamplingParams, TokenBias
from deepinfer.so_args import SoArgs

_LENGTH_BYTES = 4
_INT32 = "i"

# ---- from the HTTP process -----------------------------------------------------------------------


class Start(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The first message: what to load. options: fields of EngineArgs, paths as text."""

    model: str | None
    options: dict[str, Any]
    may_download_large: bool
    log_level: str


class Submit(msgspec.Struct, frozen=True):
    """A request that was checked. seed, grammar: as `Engine.submit` has them."""

    request_id: str
    prompt_ids: list[int]
    params: SamplingParams
    seed: int | None = None
    grammar: str | None = None


class Abort(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Nobody wants the request any more; it may be over already."""

    request_id: str


class Finish(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """A stop string ended one continuation."""

    request_id: str
    choice: int


class _Submit(msgspec.Struct, array_like=True, tag="Submit", frozen=True):
    """`Submit` in bytes: the parameters that are not at their default, ids of 32 bits.

    A prompt may have a million ids, and both event loop and steps wait while they are converted.
    """

    request_id: str
    prompt_ids: bytes
    params: dict[str, Any]
    seed: int | None
    grammar: str | None


ToEngine = Start | Submit | Abort | Finish

# ---- from the engine process ---------------------------------------------------------------------


class ModelInfo(msgspec.Struct, array_like=True, frozen=True):
    """A loaded model. folder: with its tokenizer and config. options: what was decided for each,
    to be shown. stages: of the start, (name, seconds)."""

    folder: str
    vocab_size: int
    max_model_len: int
    options: dict[str, str | int | float | bool | None]
    stages: list[tuple[str, float]]


class Ready(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The model is loaded."""

    info: ModelInfo


class Failed(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The process is about to end, and why: while loading, or in a step."""

    error: DeepInferError


class Deltas(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The news of one step, of all requests."""

    deltas: list[Delta]


class Refused(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The engine did not take a request. Nothing else will be said of it."""

    request_id: str
    error: RequestError


class Stats(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """How the engine stands; sent while it works, and when it has nothing more to do."""

    stats: EngineStats


FromEngine = Ready | Failed | Deltas | Refused | Stats

# ---- bytes ---------------------------------------------------------------------------------------

_KINDS = {kind.__name__: kind for kind in (ConfigError, CheckpointError, DeviceError)}
_DEFAULTS = {f.name: f.default for f in fields(SamplingParams) if f.default is not MISSING}


def encode(message: ToEngine | FromEngine) -> bytes:
    """The message behind its length.

    Raises RequestError naming the field for text that has no bytes: half of a surrogate pair.
    """
    sent = _flat(message) if isinstance(message, Submit) else message
    buffer = bytearray(_LENGTH_BYTES)
    try:
        _ENCODER.encode_into(sent, buffer, _LENGTH_BYTES)
    except UnicodeEncodeError:
        if not isinstance(sent, _Submit):
            raise
        raise RequestError(
            "it has half of a surrogate pair, which is no character",
            field=_first_broken(sent),
            hint="send text that UTF-8 can write",
        ) from None
    buffer[:_LENGTH_BYTES] = (len(buffer) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "big")
    return bytes(buffer)


def decode_to_engine(frame: bytes) -> ToEngine:
    """The message of one frame, which has no length any more."""
    found: Start | _Submit | Abort | Finish = _TO_ENGINE.decode(frame)
    if not isinstance(found, _Submit):
        return found
    prompt_ids = array(_INT32, found.prompt_ids).tolist()
    params = SamplingParams(**found.params)
    return Submit(found.request_id, prompt_ids, params, found.seed, found.grammar)


def decode_from_engine(frame: bytes) -> FromEngine:
    """The message of one frame, which has no length any more."""
    found: FromEngine = _FROM_ENGINE.decode(frame)
    return found


class Frames:
    """Cuts bytes, as they come from a stream, into frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now, without their lengths."""
        held = self._held
        held += data
        found, start = [], 0
        while len(held) - start >= _LENGTH_BYTES:
            begin = start + _LENGTH_BYTES
            end = begin + int.from_bytes(held[start:begin], "big")
            if end > len(held):
                break
            found.append(bytes(held[begin:end]))
            start = end
        del held[:start]
        return found


def _flat(submit: Submit) -> _Submit:
    params: dict[str, Any] = {}
    for name, default in _DEFAULTS.items():
        value = getattr(submit.params, name, default)
        if value not in (default, (), {}):
            params[name] = asdict(value) if isinstance(value, SoArgs) else value
    prompt_ids = array(_INT32, submit.prompt_ids).tobytes()
    return _Submit(submit.request_id, prompt_ids, params, submit.seed, submit.grammar)


def _first_broken(sent: _Submit) -> str:
    """The field whose text cannot be written."""
    for name, value in {**sent.params, "grammar": sent.grammar}.items():
        try:
            _ENCODER.encode(value)
        except UnicodeEncodeError:
            return name
    return "request_id"


def _to_plain(value: Any) -> Any:
    if isinstance(value, TokenBias):
        return dict(value)
    if isinstance(value, DeepInferError):
        return (type(value).__name__, value.what, value.where, value.hint)
    raise NotImplementedError(f"{type(value).__name__} has no bytes")


def _from_plain(kind: type, value: Any) -> Any:
    name, what, where, hint = value
    if kind is RequestError or name == RequestError.__name__:
        return RequestError(what, field=where, hint=hint)
    made: Callable[..., DeepInferError] = _KINDS.get(name, DeepInferError)
    return made(what, where=where, hint=hint)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_plain)
_TO_ENGINE = msgspec.msgpack.Decoder(Start | _Submit | Abort | Finish)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine, dec_hook=_from_plain)
