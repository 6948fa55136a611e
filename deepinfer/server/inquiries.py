"""The routes that generate nothing: models, tokens, health, metrics, and the page.

Knows what each answers. Leaves figures to metrics.py and live.py.
"""

from datetime import UTC, datetime
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.front.intake import prompt_token_ids
from deepinfer.server.answers import check_model
from deepinfer.server.bodies import by_size, json_object, read_body
from deepinfer.server.engine_calls import ready_model
from deepinfer.server.errors import ApiError
from deepinfer.server.exchange import Exchange
from deepinfer.server.live import snapshot
from deepinfer.server.metrics import CONTENT_TYPE, render
from deepinfer.server.page import page
from deepinfer.server.prepare import prepare
from deepinfer.server.state import ServedModel, ServerState

# What is sampled with where a request says nothing; no file of the checkpoint changes it.
DEFAULT_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
_TOKENIZE_FIELDS = {"model", "prompt", "messages", "tools", "add_special_tokens"}


async def health(state: ServerState, exchange: Exchange) -> None:
    """GET /health: this process is alive; nothing is said of the engine."""
    await exchange.respond_json(200, {"status": "ok"})


async def ready(state: ServerState, exchange: Exchange) -> None:
    """GET /ready: requests can be taken; else 503, and why."""
    model = ready_model(state)
    await exchange.respond_json(200, {"status": "ready", "model": model.names[0]})


async def metrics(state: ServerState, exchange: Exchange) -> None:
    """GET /metrics."""
    await exchange.respond(200, render(state), CONTENT_TYPE.encode())


async def live(state: ServerState, exchange: Exchange) -> None:
    """GET /live: how the engine stands, for the page."""
    await exchange.respond_json(200, snapshot(state), {"cache-control": "no-store"})


async def home(state: ServerState, exchange: Exchange) -> None:
    """GET /: the page."""
    found = page()
    headers = dict(found.headers)
    kind = headers.pop("content-type")
    await exchange.respond(200, found.body, kind.encode(), headers)


async def models(state: ServerState, exchange: Exchange) -> None:
    """GET /v1/models."""
    model = ready_model(state)
    listed = [_model(name, model, state) for name in model.names]
    ends = {"has_more": False, "first_id": model.names[0], "last_id": model.names[-1]}
    await exchange.respond_json(200, {"object": "list", "data": listed, **ends})


async def one_model(state: ServerState, exchange: Exchange) -> None:
    """GET /v1/models/{name}."""
    model = ready_model(state)
    name = exchange.path.removeprefix("/v1/models/")
    if name not in model.names:
        text = f"The model '{name[:100]}' does not exist."
        raise ApiError(404, text, "model", "model_not_found")
    await exchange.respond_json(200, _model(name, model, state))


async def tokenize(state: ServerState, exchange: Exchange) -> None:
    """POST /v1/tokenize: ids of a text, or of a conversation's whole prompt."""
    model = ready_model(state)
    body = await read_body(exchange, state.settings)
    data = await by_size(len(body), _tokenized, body, model)
    await exchange.respond_json(200, data)


async def detokenize(state: ServerState, exchange: Exchange) -> None:
    """POST /v1/detokenize: the text of ids."""
    model = ready_model(state)
    body = await read_body(exchange, state.settings)
    text = await by_size(len(body), _detokenized, body, model)
    await exchange.respond_json(200, {"prompt": text})


def _model(name: str, model: ServedModel, state: ServerState) -> dict[str, Any]:
    """In the words of all protocols at once: clients leave alone what they do not know."""
    at = datetime.fromtimestamp(state.started_at, UTC)
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": state.started_at,
        "created_at": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": "deepinfer",
        "max_model_len": model.info.max_model_len,
        "default_sampling": DEFAULT_SAMPLING,
    }


def _tokenized(body: bytes, model: ServedModel) -> dict[str, Any]:
    fields = json_object(body)
    _only(fields, _TOKENIZE_FIELDS)
    if (fields.get("messages") is None) == (fields.get("prompt") is None):
        hint = "give one of prompt and messages"
        raise RequestError("found both or neither", field="prompt", hint=hint)
    if fields.get("messages") is not None:
        fields.pop("add_special_tokens", None)
        asked = {k: v for k, v in fields.items() if v is not None}
        ids = prepare("chat", check_model(asked, model), model, official_sampling=False).prompt_ids
    else:
        adds = fields.get("add_special_tokens", True)
        if not isinstance(fields["prompt"], str) or not isinstance(adds, bool):
            hint = "prompt is text, add_special_tokens true or false"
            raise RequestError("found something else", field="prompt", hint=hint)
        check_model(fields, model)
        ids = model.tokenizer.encode(fields["prompt"], add_bos=adds)
    return {"tokens": ids, "count": len(ids), "max_model_len": model.info.max_model_len}


def _detokenized(body: bytes, model: ServedModel) -> str:
    fields = json_object(body)
    _only(fields, {"model", "tokens"})
    check_model(fields, model)
    if fields.get("tokens") == []:
        return ""
    ids = prompt_token_ids(None, fields.get("tokens", ()), model.tokenizer, model.config.vocab_size)
    return model.tokenizer.decode(ids)


def _only(fields: dict[str, Any], known: set[str]) -> None:
    for name in fields:
        if name not in known:
            text = f"Unknown field '{name[:80]}'; expected {', '.join(sorted(known))}."
            raise ApiError(400, text, name[:80], "unknown_parameter")
