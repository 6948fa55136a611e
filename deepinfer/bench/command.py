"""`deepinfer bench`: what each sort of measurement prints. Parses nothing, measures nothing.

Lines go to `show` as soon as they are known: some measurements take minutes.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from math import gcd
from pathlib import Path

import torch

from deepinfer.bench.draft_simulation import simulation_lines
from deepinfer.bench.engine import CASES, bench_engine, step_lines
from deepinfer.bench.host import NUM_REQUESTS, bench_host, host_lines
from deepinfer.bench.invariance import invariance_lines
from deepinfer.bench.masks import mask_lines
from deepinfer.bench.offline import Workload, bench_offline
from deepinfer.bench.overlap import overlap_lines
from deepinfer.bench.profile import profile_ops, profile_torch, share_lines, timed_kernels
from deepinfer.bench.replay import replay_lines
from deepinfer.bench.report import offline_lines, offline_record, survey_ground
from deepinfer.bench.steps import Case, make_step
from deepinfer.bench.sweeps import SWEEPS
from deepinfer.bench.talks import Talks, talk_lines
from deepinfer.bench.toys import num_parameters, toy_config, toy_network
from deepinfer.config.engine import EngineArgs, resolve
from deepinfer.config.machine import choose_kernels, usable_device
from deepinfer.config.model import ModelConfig
from deepinfer.config.option_checks import one_of, share, whole
from deepinfer.config.released import released_config
from deepinfer.engine.default_model import default_model
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import load_model
from deepinfer.engine.machine import this_machine
from deepinfer.engine.parts import lay_out, make_scheduler, make_worker
from deepinfer.errors import ConfigError
from deepinfer.kernels.backends import load_kernels
from deepinfer.tokenizer.tokenizer_file import TOKENIZER_FILE

Show = Callable[[str], None]

_HOST_STEPS = 300
_MASK_STEPS = 60
_MOST_SKEW = 8
_PROFILED = (Case(1, 512), Case(8, 512), Case(32, 512), Case(32, 4096), Case(1, 0, num_rows=512))
_PROFILE_REPEATS = 3


def offline(
    model: str | None, toy: str, workload: Workload, args: EngineArgs, *, as_json: bool, show: Show
) -> int:
    """Throughput of a model, or of a toy if `model` is None. 1 if a request delivered less than
    asked.

    `args` is completed by what the workload says. Raises ConfigError or CheckpointError.
    """
    workload.params()  # refused before anything is loaded
    options = {
        **asdict(args),
        "max_num_seqs": workload.batch,
        "max_model_len": workload.input_len + workload.output_len,
    }
    args = EngineArgs(**options)
    if model is None:
        engine, config, dtype = _toy_engine(toy, args)
        name = f"toy {toy!r}"
    else:
        loaded = load_model(model, args, report=show if not as_json else _silent)
        engine, config, dtype = loaded.engine, loaded.config, loaded.options.dtype
        name = str(loaded.folder)
    ground = survey_ground(name, num_parameters(engine.worker.network), dtype)
    result = bench_offline(engine, config, workload)
    if as_json:
        show(json.dumps(offline_record(ground, result)))
    else:
        _show_all(offline_lines(ground, result), show)
    return 1 if result.faults else 0


def steps(toy: str, dtype: str, num_threads: int | None, num_repeats: int, *, show: Show) -> int:
    """Steps of a toy against the bare products; None is with one thread and with all."""
    network = toy_network(toy_config(toy), load_kernels(), dtype)
    num_cpus = os.cpu_count() or 1
    for threads in sorted({1, num_cpus}) if num_threads is None else [num_threads]:
        torch.set_num_threads(threads)
        show(survey_ground(f"toy {toy!r}", num_parameters(network), dtype).line)
        times = bench_engine(network, CASES, num_threads=threads, num_repeats=num_repeats)
        _show_all(step_lines(times), show)
    return 0


def invariance(
    toy: str, dtype: str, num_threads: int | None, num_repeats: int, *, show: Show
) -> int:
    """What tiles of rows cost; None is one thread."""
    torch.set_num_threads(num_threads or 1)
    _show_all(invariance_lines(toy, dtype, num_repeats), show)
    return 0


def host(*, show: Show) -> int:
    """Host time at several numbers of running requests."""
    _show_all(host_lines(bench_host(num, _HOST_STEPS) for num in NUM_REQUESTS), show)
    return 0


def masks(model: str | None, *, show: Show) -> int:
    """What structured output costs; the tokens are those of a model's folder, or of the toy."""
    torch.set_num_threads(1)
    folder = default_model(show) if model is None else Path(model)
    _show_all(mask_lines(folder / TOKENIZER_FILE, _MASK_STEPS), show)
    return 0


def drafts_sim(*, show: Show) -> int:
    """What drafts by confidence bring on machines that were measured, simulated."""
    _show_all(simulation_lines(), show)
    return 0


def kernels(args: EngineArgs, *, show: Show) -> int:
    """The kernels of a GPU at the released model's sizes. Raises ConfigError without a GPU."""
    _need_kernels(args)
    from deepinfer.bench.gpu.kernels import kernel_lines  # Triton is not everywhere

    _show_all(kernel_lines(), show)
    return 0


def rank(
    num_ranks: int,
    case: Case,
    sweep: str | None,
    skew: float,
    args: EngineArgs,
    *,
    as_json: bool,
    show: Show,
) -> int:
    """A step of one rank of the released model. sweep: one of `SWEEPS` instead. skew: of its
    experts' rows. Raises ConfigError for sizes that cannot be, and without a GPU."""
    if not 0 <= skew <= _MOST_SKEW:
        what = f"found {skew}, expected a number from 0 to {_MOST_SKEW}"
        raise ConfigError(what, where="--skew", hint="0 visits all experts alike")
    config = _config_of_ranks(num_ranks)
    if sweep is not None:
        one_of("--sweep", sweep, list(SWEEPS))
    else:
        whole("--batch", case.batch, 1, 65_536)
        whole("--rows", case.num_rows, 1, 2**20)
        whole("--input-len", case.context, 0, config.max_position_embeddings - case.num_rows)
    _need_kernels(args)
    from deepinfer.bench.gpu.rank_report import rank_lines

    cases = [case] if sweep is None else SWEEPS[sweep]
    _show_all(rank_lines(num_ranks, cases, skew, as_json=as_json), show)
    return 0


def gap(num_ranks: int, batch: int, num_rows: int, args: EngineArgs, *, show: Show) -> int:
    """How long a GPU waits for the engine. Raises ConfigError as `rank` does."""
    config = _config_of_ranks(num_ranks)
    whole("--batch", batch, 1, 1024)
    whole("--rows", num_rows, 1, 1 + config.dspark_block_size)
    _need_kernels(args)
    from deepinfer.bench.gpu.gap import gap_lines

    _show_all(gap_lines(num_ranks, batch, num_rows - 1), show)
    return 0


def _config_of_ranks(num_ranks: int) -> ModelConfig:
    """The released model's, whose experts so many ranks must be able to share."""
    config = released_config()
    share("--ranks", f"0/{num_ranks}", gcd(config.n_routed_experts, config.dspark_n_routed_experts))
    return config


def _need_kernels(args: EngineArgs) -> None:
    machine = this_machine("cuda")
    usable_device("cuda", machine)
    name, reason = choose_kernels("cuda", args.dtype, args.weight_dtype, machine)
    if name != "triton":
        raise ConfigError(
            f"there are none to measure: {reason}", where="kernels", hint="see docs/hopper.md"
        )


def talks(model: str | None, args: EngineArgs, *, show: Show) -> int:
    """Users who talk in turns, with and without what earlier turns left."""
    _show_all(talk_lines(model, asdict(args), Talks()), show)
    return 0


def replay(model: str | None, args: EngineArgs, *, show: Show) -> int:
    """A long prompt and a second turn under each rule of replay."""
    _show_all(replay_lines(model, asdict(args)), show)
    return 0


def overlap(model: str | None, *, show: Show) -> int:
    """How much of the host's time asynchronous stepping hides, for a toy device and a model."""
    _show_all(overlap_lines(model), show)
    return 0


def profile(toy: str, dtype: str, num_threads: int | None, *, show: Show) -> int:
    """Where the time of a toy's steps goes; None is one thread."""
    torch.set_num_threads(num_threads or 1)
    kernels, times = timed_kernels(load_kernels())
    network = toy_network(toy_config(toy), kernels, dtype)
    show(survey_ground(f"toy {toy!r}", num_parameters(network), dtype).line)
    for case in _PROFILED:
        title = f"{case.words}, context {case.context:,}"
        by_op = profile_ops(network, times, case, _PROFILE_REPEATS)
        _show_all(share_lines(f"{title}, ops of the model", by_op), show)
        by_torch = profile_torch(make_step(network, case), _PROFILE_REPEATS)
        _show_all(share_lines(f"{title}, ops of torch", by_torch), show)
    return 0


def _toy_engine(toy: str, args: EngineArgs) -> tuple[Engine, ModelConfig, str]:
    config = toy_config(toy)
    options = resolve(args, config, this_machine(args.device))
    torch.set_num_threads(options.num_threads)
    network = toy_network(config, load_kernels(act_quant=options.act_quant), options.dtype)
    options, sizes = lay_out(config, options, network.kernels.storage)
    worker = make_worker(network, options, sizes)
    return Engine(make_scheduler(options, sizes), worker, [config.eos_token_id]), config, args.dtype


def _show_all(lines: Iterator[str], show: Show) -> None:
    for line in lines:
        show(line)


def _silent(line: str) -> None:
    """In JSON output a line of text would be a fault."""
