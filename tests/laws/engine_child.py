"""A process of its own with a whole engine and a folder on the disk, to be asked and killed."""

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from deepinfer.engine.engine import Engine
from deepinfer.entrypoints.llm import LLM
from deepinfer.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def open_llm(model: Path, folder: Path | None) -> LLM:
    """A small engine; without a folder one that finds nothing."""
    disk: dict[str, Any] = {"kv_disk_dir": folder, "kv_disk_bytes": 1 << 30}
    return LLM(
        model,
        report=lambda _: None,
        max_num_seqs=4,
        max_model_len=384,
        prefix_replay="exact",
        draft_schedule="off",
        num_threads=1,
        **(disk if folder else {"enable_prefix_caching": False}),
    )


def engine_of(llm: LLM) -> Engine:
    """The engine below."""
    return llm._requests.model.engine


def answers(llm: LLM, prompts: list[list[int]]) -> list[tuple[list[int], int]]:
    """Of each its tokens, and how many of the prompt's were found."""
    outputs = llm.generate(prompt_token_ids=prompts, sampling_params=PARAMS, use_tqdm=False)
    return [(list(one.outputs[0].token_ids), one.num_cached_tokens) for one in outputs]


def serve(model: Path, folder: Path, asked: Connection, pause_s: float) -> None:
    """Answer each list of prompts, until None comes. pause_s: the disk takes so long for every
    part of a file, and takes half of what it is given at a time."""
    torch.set_num_threads(1)
    write = os.write

    def write_half(fd: int, content: bytes | memoryview) -> int:
        if not isinstance(content, memoryview):  # a pipe's
            return write(fd, content)
        time.sleep(pause_s)
        return write(fd, content[: len(content) // 2 + 1])

    os.write = write_half
    with open_llm(model, folder) as llm:
        asked.send("ready")
        while (prompts := asked.recv()) is not None:
            asked.send((answers(llm, prompts), engine_of(llm).stats().disk_hit_tokens_total))
