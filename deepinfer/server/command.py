"""The options of `deepinfer serve`. Parses and calls, nothing else."""

import logging
from typing import Annotated, Any, get_args

import typer

from deepinfer.config.engine import engine_args
from deepinfer.config.env import environment
from deepinfer.config.words import Accept, ActQuant, Device, DraftSchedule, Dtype, WeightDtype
from deepinfer.logs import setup_logging
from deepinfer.server.link import EngineCommand
from deepinfer.server.serve import serve as run
from deepinfer.server.settings import ServerSettings

_LEVELS = {10: "debug", 20: "info", 30: "warning", 40: "error"}


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
    device: Annotated[str, typer.Option(help=" | ".join(get_args(Device)))] = "auto",
    dtype: Annotated[str, typer.Option(help=" | ".join(get_args(Dtype)))] = "bfloat16",
    weight_dtype: Annotated[str, typer.Option(help=" | ".join(get_args(WeightDtype)))] = "auto",
    act_quant: Annotated[str, typer.Option(help=" | ".join(get_args(ActQuant)))] = "off",
    load_format: Annotated[str, typer.Option(help="auto | dummy: random weights.")] = "auto",
    max_model_len: Annotated[
        int | None, typer.Option(help="Most tokens of prompt and answer together.")
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 256,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Rows of a step.")] = None,
    kv_cache_bytes: Annotated[int | None, typer.Option(help="Of blocks and slots.")] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of what the weights leave.")
    ] = 0.9,
    kv_host_bytes: Annotated[int, typer.Option(help="Host memory for kept blocks.")] = 0,
    kv_disk_dir: Annotated[str | None, typer.Option(help="A folder for kept blocks.")] = None,
    kv_disk_bytes: Annotated[int, typer.Option(help="What it may take.")] = 0,
    num_threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seeds the requests that have no seed of their own.")
    ] = None,
    draft_schedule: Annotated[
        str | None, typer.Option(help=" | ".join(get_args(DraftSchedule)))
    ] = None,
    num_drafts: Annotated[int | None, typer.Option(help="Drafts at once, 1 to 5.")] = None,
    accept: Annotated[str, typer.Option(help=" | ".join(get_args(Accept)))] = "auto",
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="What was computed serves later prompts that begin alike.")
    ] = True,
    prefix_replay: Annotated[str | None, typer.Option(help="bounded | exact.")] = None,
    replay: Annotated[str | None, typer.Option(help="off | mask: docs/limits.md.")] = None,
    keep_tokens: Annotated[int | None, typer.Option(help="Of replay.")] = None,
    async_scheduling: Annotated[
        bool | None, typer.Option(help="Plan a step while one runs. Default: by device.")
    ] = None,
    batch_invariant: Annotated[
        bool | None, typer.Option(help="Results do not depend on the batch. Default: on a CPU.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Consent to a download of more than 5 GiB.")
    ] = False,
) -> None:
    """Serve a model over HTTP: Chat Completions, Completions, Responses, Messages."""
    level = logging.getLogger("deepinfer").level or logging.WARNING
    # One line a request is what a server's log is for; warning, the default, would hide it.
    setup_logging(_LEVELS[min(level, logging.INFO)])
    key = environment().api_key
    options: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "weight_dtype": weight_dtype,
        "act_quant": act_quant,
        "load_format": load_format,
        "max_model_len": max_model_len,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_cache_bytes": kv_cache_bytes,
        "gpu_memory_utilization": gpu_memory_utilization,
        "kv_host_bytes": kv_host_bytes,
        "kv_disk_dir": kv_disk_dir,
        "kv_disk_bytes": kv_disk_bytes,
        "num_threads": num_threads,
        "seed": seed,
        "draft_schedule": draft_schedule,
        "num_drafts": num_drafts,
        "accept": accept,
        "enable_prefix_caching": enable_prefix_caching,
        "prefix_replay": prefix_replay,
        "replay": replay,
        "keep_tokens": keep_tokens,
        "async_scheduling": async_scheduling,
        "batch_invariant": batch_invariant,
    }
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
