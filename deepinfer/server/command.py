"""The options of `deepinfer serve`. Parses and calls, nothing else.

To be imported without the libraries of a server: they are an extra.
"""

import logging
from typing import Annotated, Any

import typer

from deepinfer.config.engine import engine_args
from deepinfer.config.engine_options import engine_options
from deepinfer.config.env import environment
from deepinfer.errors import ConfigError
from deepinfer.logs import setup_logging
from deepinfer.server.settings import ServerSettings

_LEVELS = {10: "debug", 20: "info", 30: "warning", 40: "error"}


@engine_options
def serve(  # noqa: PLR0913, PLR0917  (an option is an argument)
    model: Annotated[
        str | None,
        typer.Argument(help="Folder or Hugging Face id. Default: models/demo, else a random toy."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What requests call the model. Default: its folder.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Ask for one of these. Better in DEEPINFER_API_KEY: others see options."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Whose pages may call the API; * is all.")
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(help="Requests that may wait for their first token.", min=1)
    ] = ServerSettings.max_waiting,
    max_waiting_tokens: Annotated[
        int, typer.Option(help="Tokens of their prompts.", min=1)
    ] = ServerSettings.max_waiting_tokens,
    max_body_bytes: Annotated[
        int, typer.Option(help="Of one request.", min=1024)
    ] = ServerSettings.max_body_bytes,
    drain_s: Annotated[
        float, typer.Option(help="How long requests may go on after SIGTERM.", min=0)
    ] = ServerSettings.drain_s,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Write prompts into the log.")
    ] = False,
    official_sampling: Annotated[
        bool,
        typer.Option("--official-sampling", help="temperature and top_p as the release has them."),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Seeds the requests that have no seed of their own.")
    ] = None,
    engine: Any = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Consent to a download of more than 5 GiB.")
    ] = False,
) -> None:
    """Serve a model over HTTP: Chat Completions, Completions, Responses, Messages."""
    try:
        from deepinfer.server.link import EngineCommand
        from deepinfer.server.serve import serve as run
    except ModuleNotFoundError as error:
        what = f"a server needs {error.name}, which is not installed"
        hint = "pip install 'deepinfer[serve]'"
        raise ConfigError(what, where="serve", hint=hint) from error
    level = logging.getLogger("deepinfer").level or logging.WARNING
    # One line a request is what a server's log is for; warning, the default, would hide it.
    setup_logging(_LEVELS[min(level, logging.INFO)])
    key = environment().api_key
    options = {**engine, "seed": seed}
    engine_args(options)  # a misspelt option is refused before anything starts
    settings = ServerSettings(
        host=host,
        port=port,
        served_names=tuple(served_model_name or ()),
        api_keys=(*(api_key or ()), *((key,) if key else ())),
        allow_origins=tuple(allow_origin or ()),
        max_waiting=max_waiting,
        max_waiting_tokens=max_waiting_tokens,
        max_body_bytes=max_body_bytes,
        drain_s=drain_s,
        log_prompts=log_prompts,
        official_sampling=official_sampling,
    )
    command = EngineCommand(model, options, may_download_large=yes, log_level=_LEVELS[level])
    run(command, settings, report=lambda line: typer.echo(line, err=True))
