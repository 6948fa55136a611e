"""Documents to rows of one length, and rows to batches.

A row has documents back to back, each with its BOS; nothing in the model starts anew there, so what
came before is noise that a document learns to overlook, and the first document of a row sees
what it will see when the model is used. No document is cut. Knows lengths. Does not know tasks.

    python -m training.data.rows TOKENIZER_FOLDER OUT.npz --rows 20000 --seq-len 512
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from deepinfer.config.model import parse_model_config
from deepinfer.tokenizer.tokenizer import load_tokenizer
from training.config import demo_config
from training.data.mix import Mix
from training.data.render import Document

# Rows that are filled at the same time: of more, one is found into which a document fits well.
_OPEN_ROWS: Final = 64
_ROWS_PER_TASK: Final = 256


class Rows(NamedTuple):
    """token_ids: uint16 [N, S], padded. is_target: bool [N, S], True where the token is to be
    predicted from those before it; never for a row's first token or for padding."""

    token_ids: npt.NDArray[np.uint16]
    is_target: npt.NDArray[np.bool_]


def pack(documents: Iterable[Document], seq_len: int, pad_id: int) -> Iterator[Rows]:
    """Rows [1, S] of all documents, each document whole and in one row. The first rows are full
    or nearly; the last ones are what is left when the documents end.

    Each goes into the fullest open row that has room, and the fullest row is handed out when there
    is none. Raises ValueError for a document that is longer than a row.
    """
    open_rows: list[list[Document]] = [[] for _ in range(_OPEN_ROWS)]
    lengths = [0] * _OPEN_ROWS
    for document in documents:
        length = len(document.token_ids)
        if length > seq_len:
            raise ValueError(f"a document of {length} tokens in rows of {seq_len}")
        fitting = [i for i in range(_OPEN_ROWS) if lengths[i] + length <= seq_len]
        if fitting:
            place = max(fitting, key=lengths.__getitem__)
        else:
            place = max(range(_OPEN_ROWS), key=lengths.__getitem__)
            yield _row(open_rows[place], seq_len, pad_id)
            open_rows[place], lengths[place] = [], 0
        open_rows[place].append(document)
        lengths[place] += length
    for documents_left in open_rows:
        if documents_left:
            yield _row(documents_left, seq_len, pad_id)


def draw_rows(mix: Mix, name: str, num_rows: int) -> Rows:
    """`num_rows` rows as long as the mix's longest document. The same name gives the same rows."""
    rng = Random(name)
    documents = iter(partial(mix.draw, rng), None)
    packed = pack(documents, mix.longest, mix.tokenizer.pad_id)
    return join([row for row, _ in zip(packed, range(num_rows), strict=False)])


def join(parts: list[Rows]) -> Rows:
    """All rows in one."""
    return Rows(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.is_target for part in parts]),
    )


def draw_rows_in_parallel(mix: Mix, name: str, num_rows: int, num_processes: int) -> Rows:
    """As `draw_rows`, in several processes: the rows depend on the name, not on their number."""
    names = [f"{name} {part}" for part in range(-(-num_rows // _ROWS_PER_TASK))]
    work = partial(_draw_part, mix)
    if num_processes == 1:
        parts = list(map(work, names))
    else:
        with get_context("fork").Pool(num_processes) as pool:
            parts = pool.map(work, names, chunksize=1)
    rows = join(parts)
    return Rows(rows.token_ids[:num_rows], rows.is_target[:num_rows])


def batches(rows: Rows, name: str, batch_size: int) -> Iterator[Rows]:
    """All rows in an order that the name decides, `batch_size` at a time; a rest is left out."""
    order = np.random.default_rng(list(name.encode())).permutation(len(rows.token_ids))
    for start in range(0, len(order) - batch_size + 1, batch_size):
        chosen = order[start : start + batch_size]
        yield Rows(rows.token_ids[chosen], rows.is_target[chosen])


def save(path: Path, rows: Rows) -> None:
    """Keep rows in a file. It is whole as soon as it has its name: others may be waiting for it."""
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        np.savez(file, token_ids=rows.token_ids, is_target=np.packbits(rows.is_target, axis=1))
    unfinished.replace(path)


def load(path: Path) -> Rows:
    """Rows from a file."""
    with np.load(path) as kept:
        token_ids = kept["token_ids"]
        bits = np.unpackbits(kept["is_target"], axis=1, count=token_ids.shape[1])
        return Rows(token_ids, bits.astype(np.bool_))


def _draw_part(mix: Mix, name: str) -> Rows:
    return draw_rows(mix, name, _ROWS_PER_TASK)


def _row(documents: list[Document], seq_len: int, pad_id: int) -> Rows:
    token_ids = np.full((1, seq_len), pad_id, dtype=np.uint16)
    is_target = np.zeros((1, seq_len), dtype=np.bool_)
    end = 0
    for document in documents:
        start, end = end, end + len(document.token_ids)
        token_ids[0, start:end] = document.token_ids
        is_target[0, start:end] = document.is_target
    return Rows(token_ids, is_target)


def load_mix(
    tokenizer_folder: Path, seq_len: int, level: float = 1.0, *, is_late: bool = False
) -> Mix:
    """The usual mix with the tokenizer of a folder."""
    config = parse_model_config(demo_config(tokenizer_folder))
    return Mix(load_tokenizer(tokenizer_folder, config), seq_len, level, is_late=is_late)


def main() -> int:
    """Draw rows and keep them in a file; say how many tokens they have."""
    parser = argparse.ArgumentParser(description="Rows of training documents.")
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--level", type=float, default=1.0)
    parser.add_argument("--late", action="store_true", help="for the stages after pretrain")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--name", default="train")
    given = parser.parse_args()
    mix = load_mix(given.tokenizer, given.seq_len, given.level, is_late=given.late)
    start = time.monotonic()
    rows = draw_rows_in_parallel(mix, given.name, given.rows, given.processes)
    save(given.out, rows)
    took, pad_id = time.monotonic() - start, mix.tokenizer.pad_id
    print(  # noqa: T201  (a program of its own)
        f"{rows.token_ids.size} tokens in {took:.1f} s, "
        f"{(rows.token_ids == pad_id).mean():.1%} padding, {rows.is_target.mean():.1%} targets"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
