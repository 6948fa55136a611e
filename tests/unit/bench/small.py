"""A network small enough to be measured in milliseconds."""

from deepinfer.checkpoint.tiny import tiny_config
from deepinfer.config.engine import EngineArgs, resolve
from deepinfer.config.model import ModelConfig, parse_model_config
from deepinfer.engine.engine import Engine
from deepinfer.engine.machine import this_machine
from deepinfer.engine.parts import lay_out, make_scheduler
from deepinfer.kernels.backends import load_kernels
from deepinfer.kernels.kernelset import KernelSet
from deepinfer.model.network import Network
from deepinfer.worker.build import build_dummy
from deepinfer.worker.pools import make_pools
from deepinfer.worker.worker import Worker

CONFIG: ModelConfig = parse_model_config(tiny_config())


def small_network(kernels: KernelSet | None = None) -> Network:
    return build_dummy(CONFIG, [0] * CONFIG.vocab_size, kernels or load_kernels())


def small_engine(max_num_seqs: int = 4, **options: int) -> Engine:
    args = EngineArgs(
        device="cpu", max_num_seqs=max_num_seqs, max_model_len=256, num_threads=1, **options
    )
    options_found, sizes = lay_out(CONFIG, resolve(args, CONFIG, this_machine("cpu")), "bfloat16")
    worker = Worker(small_network(), make_pools(CONFIG, sizes.num_blocks, sizes.num_slots))
    return Engine(make_scheduler(options_found, sizes), worker, [CONFIG.eos_token_id])
