"""The routes that generate: the three protocols of conversations, and Completions.

Knows the order: a place among those that wait, the body, its fields, the prompt, the engine. Leaves
each to its file.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from deepinfer.recipe.request import Protocol
from deepinfer.server.bodies import by_size, json_object, read_body
from deepinfer.server.conversations import answer
from deepinfer.server.engine_calls import ready_model
from deepinfer.server.errors import ApiError
from deepinfer.server.exchange import Exchange
from deepinfer.server.fields import Api, check_fields
from deepinfer.server.gate import Handler
from deepinfer.server.prepare import Job, prepare
from deepinfer.server.state import ServedModel, ServerState
from deepinfer.server.text_request import TextRequest, read_text_request
from deepinfer.server.texts import answer_texts

_LOG = logging.getLogger("deepinfer.server")


def conversation(protocol: Protocol) -> Handler:
    """The handler of a protocol."""

    async def handle(state: ServerState, exchange: Exchange) -> None:
        model = ready_model(state)
        with state.admission.enter() as place:
            body = await read_body(exchange, state.settings)
            job = await by_size(len(body), _job, body, protocol, model, state)
            place.add_tokens(len(job.prompt_ids))
            _log_prompt(state, exchange, job.prompt)
            await answer(state, exchange, place, job, model)

    return handle


async def completions(state: ServerState, exchange: Exchange) -> None:
    """POST /v1/completions."""
    model = ready_model(state)
    with ExitStack() as stack:
        places = [stack.enter_context(state.admission.enter())]
        body = await read_body(exchange, state.settings)
        request = await by_size(len(body), _text_request, body, model)
        while len(places) < len(request.prompts):
            places.append(stack.enter_context(state.admission.enter()))
        for place, (text, ids) in zip(places, request.prompts, strict=True):
            place.add_tokens(len(ids))
            _log_prompt(state, exchange, text or str(ids))
        await answer_texts(state, exchange, places, request, model)


async def count_tokens(state: ServerState, exchange: Exchange) -> None:
    """POST /v1/messages/count_tokens."""
    model = ready_model(state)
    body = await read_body(exchange, state.settings)
    job = await by_size(len(body), _job, body, "messages", model, state)
    await exchange.respond_json(200, {"input_tokens": len(job.prompt_ids)})


def check_model(fields: Mapping[str, Any], model: ServedModel) -> Mapping[str, Any]:
    """The fields, of a request that names the served model, or none. Raises ApiError (404)."""
    name = fields.get("model")
    if name is not None and name not in model.names:
        shown = json.dumps(name)[:100]
        text = f"The model {shown} does not exist; this server has {', '.join(model.names)}."
        raise ApiError(404, text, "model", "model_not_found")
    return fields


def _job(body: bytes, protocol: Protocol, model: ServedModel, state: ServerState) -> Job:
    official = state.settings.official_sampling
    return prepare(protocol, _checked(body, protocol, model), model, official_sampling=official)


def _checked(body: bytes, api: Api, model: ServedModel) -> Mapping[str, Any]:
    return check_model(check_fields(api, json_object(body)), model)


def _text_request(body: bytes, model: ServedModel) -> TextRequest:
    return read_text_request(_checked(body, "completions", model), model)


def _log_prompt(state: ServerState, exchange: Exchange, prompt: str) -> None:
    if state.settings.log_prompts:
        _LOG.info("%s prompt: %s", exchange.request_id, json.dumps(prompt, ensure_ascii=False))
