"""The command line: parses and calls, nothing else."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import typer

from deepinfer import __version__
from deepinfer.config.engine_options import engine_options, refuse_for_a_server
from deepinfer.config.env import environment, set_thread_policy
from deepinfer.config.words import Device
from deepinfer.errors import ConfigError, DeepInferError
from deepinfer.logs import LEVELS, setup_logging
from deepinfer.server.command import serve

_T = TypeVar("_T")

app = typer.Typer(
    name="deepinfer",
    help='An inference engine for DeepSeek-V4.1-Flash. Start with: deepinfer generate "Hello"',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Random text has no end; a random toy that was given no limit stops here.
_TOY_MAX_TOKENS = 64

# What several commands take.
_Model = Annotated[
    str | None,
    typer.Argument(help="Folder or Hugging Face id. Default: models/demo, else a random toy."),
]
_Device = Annotated[str, typer.Option(help=" | ".join(get_args(Device)))]
_ApiKey = Annotated[str | None, typer.Option(help="Of a server that asks for one.")]
_Yes = Annotated[bool, typer.Option("--yes", help="Consent to a download of more than 5 GiB.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"deepinfer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    log_level: Annotated[
        str,
        typer.Option(help=f"{' | '.join(LEVELS)}: info shows stages and memory of a start."),
    ] = "warning",
) -> None:
    if log_level not in LEVELS:
        raise ConfigError(
            f"found {log_level!r}, expected one of {', '.join(LEVELS)}",
            where="--log-level",
            hint="correct the option",
        )
    setup_logging(log_level)
    environment()  # a name that is set and not honoured is refused by every command


@app.command()
@engine_options
def generate(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="Texts to continue; without any, stdin is one."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Folder or Hugging Face id. Default: models/demo, else a random toy."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read prompts from a file, one a line.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens to generate. Default: to the model's limit.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token; higher is more varied.")
    ] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Draw among the likeliest tokens that reach this probability.")
    ] = 1.0,
    top_k: Annotated[
        int, typer.Option(help="Draw among this many likeliest tokens; 0 or -1 is all.")
    ] = -1,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the end-of-sequence token.")
    ] = False,
    engine: Any = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a prompt instead of text.")
    ] = False,
    yes: _Yes = False,
) -> None:
    """Continue prompts and stream the text."""
    from deepinfer.entrypoints.llm import LLM
    from deepinfer.sampling_params import SamplingParams
    from deepinfer.tools import generate as tool

    texts = tool.read_prompts(prompts or [], file, sys.stdin)
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_tokens=_most_tokens(model, max_tokens),
        ignore_eos=ignore_eos,
    )
    llm = LLM(model, may_download_large=yes, report=_report, **engine)
    raise typer.Exit(tool.generate(llm, texts, params, as_json=as_json))


@app.command()
@engine_options
def chat(
    model: _Model = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    thinking: Annotated[
        str, typer.Option(help="on | off | low | high | max: thoughts before the answer.")
    ] = "on",
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of an answer. Default: to the model's limit.")
    ] = None,
    max_thinking_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of thoughts; then the answer must begin.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="As for generate.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="As for generate.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="As for generate.")] = None,
    api_key: _ApiKey = None,
    engine: Any = None,
    yes: _Yes = False,
) -> None:
    """Talk to a model, or to a server; its thoughts are shown dim."""
    from deepinfer.tools.terminal import THINKING

    how = _chosen("--thinking", thinking, THINKING)
    if model is not None and model.startswith(("http://", "https://")):
        from deepinfer.tools import chat_url

        refuse_for_a_server(engine)
        asked = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
        asked |= {"thinking_budget": max_thinking_tokens, **chat_url.thinking_fields(how)}
        given = {name: value for name, value in asked.items() if value is not None}
        server = chat_url.Server(model, api_key)
        raise typer.Exit(chat_url.main(server, given, system=system, stdin=sys.stdin))
    from deepinfer.entrypoints.llm import LLM
    from deepinfer.sampling_params import SamplingParams
    from deepinfer.tools import chat as tool

    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        max_tokens=_most_tokens(model, max_tokens),
        max_thinking_tokens=max_thinking_tokens,
    )
    llm = LLM(model, may_download_large=yes, report=_report, **engine)
    raise typer.Exit(tool.main(llm, params, system=system, thinking=how, stdin=sys.stdin))


app.command()(serve)


@app.command()
def inspect(
    folder: Annotated[Path, typer.Argument(help="A checkpoint's folder.")],
) -> None:
    """Print a checkpoint against what its config.json asks for. Reads headers only."""
    from deepinfer.tools import inspect as tool

    raise typer.Exit(tool.main(folder))


@app.command()
def tiny(
    folder: Annotated[
        Path, typer.Argument(help="Where to write it; the folder must be empty or new.")
    ],
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
) -> None:
    """Write a random toy checkpoint in the released format, tokenizer included."""
    from deepinfer.tools import tiny as tool

    raise typer.Exit(tool.main(folder, seed))


@app.command()
def selftest(
    model: Annotated[
        Path | None, typer.Option(help="A small checkpoint's folder. Default: a random toy.")
    ] = None,
    device: _Device = "auto",
) -> None:
    """Check this machine: the network against a second implementation of the model."""
    from deepinfer.tools import selftest as tool

    raise typer.Exit(tool.main(model, device))


@app.command("eval")
@engine_options
def evaluate(
    model: _Model = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few cases and short texts: under a minute.")
    ] = False,
    of_drafts: Annotated[
        bool, typer.Option("--drafts", help="What drafts bring instead: traces, and tokens/s.")
    ] = False,
    engine: Any = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of a table.")
    ] = False,
    yes: _Yes = False,
) -> None:
    """Measure a model at held-out tasks and text, with confidence intervals."""
    from deepinfer.entrypoints.llm import LLM
    from deepinfer.tools import eval as tool

    options = {"may_download_large": yes, **engine}
    if of_drafts:
        from deepinfer.tools import eval_drafts

        raise typer.Exit(eval_drafts.main(model, options, _show))
    llm = LLM(model, report=_report, **options)
    raise typer.Exit(tool.main(llm, quick=quick, as_lines=not as_json, show=_show))


@app.command()
@engine_options
def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="offline: throughput of requests. steps: steps of a toy against bare products. "
            "invariance: what rows pay for not depending on their batch. host: time of the "
            "scheduler. profile: where a toy's steps spend their time. masks: structured output. "
            "drafts-sim: what drafts by confidence bring, simulated. overlap: host time hidden. "
            "replay: a long prompt and a second turn under each rule of replay. kernels: a GPU's, "
            "at the released model's sizes. rank: a step of one rank of that model there. gap: how "
            "long the GPU waits."
        ),
    ] = "offline",
    model: Annotated[
        str | None,
        typer.Option(
            help="offline, overlap, replay: folder or id; masks: folder. Default: the toy, and the "
            "demo model for chat and replay."
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(help="offline: random | chat: unrelated prompts, or users who talk in turns."),
    ] = "random",
    url: Annotated[
        str | None, typer.Option(help="offline: measure a server there instead, as its clients.")
    ] = None,
    streams: Annotated[int, typer.Option(help="--url: requests at once.")] = 8,
    requests: Annotated[int, typer.Option(help="--url: requests in all.")] = 32,
    input_words: Annotated[int, typer.Option(help="--url: words of each prompt.")] = 64,
    api_key: _ApiKey = None,
    pid: Annotated[
        int | None, typer.Option(help="--url: the server's process, to count its CPU time.")
    ] = None,
    toy: Annotated[
        str, typer.Option(help="engine | peer: a network of random weights, made in memory.")
    ] = "engine",
    input_len: Annotated[int, typer.Option(help="offline: tokens of each prompt.")] = 512,
    output_len: Annotated[int, typer.Option(help="offline: tokens to generate for each.")] = 64,
    batch: Annotated[int, typer.Option(help="offline: requests, all at once.")] = 8,
    temperature: Annotated[float, typer.Option(help="offline: as for generate.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="offline: as for generate.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="offline: as for generate.")] = -1,
    seed: Annotated[
        int | None,
        typer.Option(help="offline: of prompts and draws. Default: 0; with --url, a new one."),
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="offline: no run before the timed one.")
    ] = False,
    ranks: Annotated[int, typer.Option(help="rank, gap: of how many; experts are shared out.")] = 8,
    rows: Annotated[
        int, typer.Option(help="rank, gap: rows of each request; of more than 8, a prompt's.")
    ] = 4,
    sweep: Annotated[
        str | None, typer.Option(help="rank: decode | contexts | prompts: many sizes instead.")
    ] = None,
    skew: Annotated[float, typer.Option(help="rank: the k-th expert has k**-skew rows.")] = 0.0,
    repeats: Annotated[int, typer.Option(help="steps, invariance: how often a step is timed.")] = 7,
    engine: Any = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="offline: one JSON object. rank: one for each case.")
    ] = False,
) -> None:
    """Measure this machine. docs/benchmarks.md tells what the figures mean."""
    if url is not None:
        from deepinfer.bench import url_report
        from deepinfer.bench.client import Target
        from deepinfer.bench.load import UrlWorkload

        refuse_for_a_server(engine)
        load = UrlWorkload(streams, requests, input_words, output_len, temperature, top_p, top_k)
        load = load if seed is None else replace(load, seed=seed)
        target = Target.of(url, api_key)
        raise typer.Exit(url_report.main(target, load, pid, as_json=as_json, show=_show))
    from deepinfer.bench import command as tool
    from deepinfer.bench.offline import Workload
    from deepinfer.bench.steps import Case
    from deepinfer.config.engine import engine_args

    dtype, num_threads = engine["dtype"], engine["num_threads"]
    if repeats < 1:
        raise ConfigError(f"found {repeats}", where="--repeats", hint="give at least 1")
    args = engine_args(engine)
    asked = Workload(
        input_len=input_len,
        output_len=output_len,
        batch=batch,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed or 0,
        cold=cold,
    )
    offline = {
        "random": lambda: tool.offline(model, toy, asked, args, as_json=as_json, show=_show),
        "chat": lambda: tool.talks(model, args, show=_show),
    }
    sorts = {
        "offline": _chosen("--workload", workload, offline),
        "steps": lambda: tool.steps(toy, dtype, num_threads, repeats, show=_show),
        "invariance": lambda: tool.invariance(toy, dtype, num_threads, repeats, show=_show),
        "host": lambda: tool.host(show=_show),
        "overlap": lambda: tool.overlap(model, show=_show),
        "replay": lambda: tool.replay(model, args, show=_show),
        "profile": lambda: tool.profile(toy, dtype, num_threads, show=_show),
        "masks": lambda: tool.masks(model, show=_show),
        "drafts-sim": lambda: tool.drafts_sim(show=_show),
        "kernels": lambda: tool.kernels(args, show=_show),
        "rank": lambda: tool.rank(
            ranks, Case(batch, input_len, rows), sweep, skew, args, as_json=as_json, show=_show
        ),
        "gap": lambda: tool.gap(ranks, batch, rows, args, show=_show),
    }
    raise typer.Exit(_chosen("WHAT", what, sorts)())


@app.command()
def cache(
    what: Annotated[
        str,
        typer.Argument(
            help="list: what is there. check: read all, remove what is damaged. clear: remove all."
        ),
    ],
    folder: Annotated[Path, typer.Argument(help="The folder that was --kv-disk-dir.")],
) -> None:
    """Look after a folder of the cache's disk tier."""
    from deepinfer.tools import cache as tool

    raise typer.Exit(tool.main(what, folder, show=_show))


@app.command()
def plan(
    folder: Annotated[Path, typer.Argument(help="A model's folder, or its config.json.")],
    memory: Annotated[
        str | None, typer.Option(help="Bytes, or 80GB, 24GiB. Default: this machine's.")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of each sequence. Default: the model's longest.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences at once.")] = 1,
    dtype: Annotated[str, typer.Option(help="bfloat16 | float32: decoded weights.")] = "bfloat16",
) -> None:
    """Tell what fits into memory, from config.json alone."""
    from deepinfer.tools import plan as tool

    raise typer.Exit(tool.main(folder, memory, context, batch, dtype=dtype))


def _most_tokens(model: str | None, asked: int | None) -> int:
    """Tokens to generate at most: to the model's limit, if nobody asked for fewer."""
    from deepinfer.engine.default_model import demo_folder
    from deepinfer.sampling_params import MAX_TOKENS

    if asked is not None:
        return asked
    is_toy = model is None and environment().model_dir is None and demo_folder() is None
    return _TOY_MAX_TOKENS if is_toy else MAX_TOKENS


def _chosen(where: str, word: str, among: Mapping[str, _T]) -> _T:
    if word not in among:
        what = f"found {word!r}, expected one of {', '.join(among)}"
        raise ConfigError(what, where=where, hint="correct it")
    return among[word]


def _show(line: str) -> None:
    print(line, flush=True)


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Run the command line, which ends the process: 0, 1 for a refused prompt or a failed check, 2
    for a wrong call or a model that cannot be loaded."""
    set_thread_policy()
    try:
        app()
    except (DeepInferError, OSError) as error:  # OSError: standard output on a full disk, say
        _report(f"error: {error}")
    return 2


if __name__ == "__main__":
    sys.exit(main())
