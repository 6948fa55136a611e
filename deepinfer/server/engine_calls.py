"""What routes say to the engine, and what its silence means to a client.

Knows the link and the errors that come over it. Does not know protocols.
"""

from uuid import uuid4

from deepinfer.errors import RequestError
from deepinfer.sampling_params import SamplingParams
from deepinfer.server.admission import RETRY_AFTER_S, TooManyWaiting
from deepinfer.server.errors import ApiError, from_request_error
from deepinfer.server.link import EngineLost, EngineUnavailable
from deepinfer.server.state import ServedModel, ServerState
from deepinfer.server.wire import Submit

SERVER_ENDS = ApiError(503, "The server is ending.", code="server_ends", retry_after_s=5)
# It closed a channel before an answer was complete.
ENGINE_SILENT = ApiError(503, "The engine said no more.", code="engine_lost", retry_after_s=1)


def ready_model(state: ServerState) -> ServedModel:
    """The model, if requests can be taken. Raises ApiError (503)."""
    if state.is_draining:
        raise SERVER_ENDS
    if state.model is None or state.link.state != "ready":
        why = {
            "starting": "The model is being loaded.",
            "ready": "The model is being loaded.",
            "restarting": "The engine is being restarted after it ended unexpectedly.",
            "stopped": "The engine has stopped.",
        }[state.link.state]
        raise ApiError(503, why, code=f"engine_{state.link.state}", retry_after_s=5)
    return state.model


def submit_of(
    prompt_ids: list[int], params: SamplingParams, grammar: str | None, model: ServedModel
) -> Submit:
    """What the engine gets. grammar: the text of params.so_args."""
    seed = params.seed
    if seed is None and model.seeds is not None:
        seed = model.seeds.getrandbits(64)
    return Submit(uuid4().hex, prompt_ids, params, seed, grammar)


def as_api_error(error: Exception) -> ApiError:
    """What a client is told of an error. One that nobody foresaw is a 500 without details."""
    match error:
        case ApiError():
            return error
        case RequestError():
            return from_request_error(error)
        case TooManyWaiting():
            text = f"Too many requests: {error.what}."
            return ApiError(429, text, code="too_many_waiting", retry_after_s=RETRY_AFTER_S)
        case EngineLost():
            text = "The engine ended while it worked on the request; it is being restarted."
            return ApiError(503, text, code="engine_lost", retry_after_s=2)
        case EngineUnavailable():
            return ApiError(503, "The engine is not ready.", code="engine", retry_after_s=5)
    return ApiError(500, "The server has a fault; its log says more.", code="internal_error")
