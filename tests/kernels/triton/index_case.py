"""What tests of index scores have in common: rows, packed keys, and what their scores should be."""

import torch
from torch import Tensor

from deepinfer.kernels.reference import index, quant
from deepinfer.kernels.triton.index_scores import index_scores, serves
from deepinfer.kernels.triton.index_small import index_scores_small
from deepinfer.kernels.values import EntryView
from tests.kernels.triton.packed import decode

INF = float("inf")


class Case:
    """Sequences with some rows each, their keys in shuffled blocks of one store."""

    def __init__(self, generator, device, counts, num_blocks, per_block, heads=32, channels=128):
        def normal(*shape):
            return torch.randn(*shape, generator=generator)

        num_rows, self.counts, self.device = sum(counts), counts, device
        self.channels = channels
        query = quant.round_trip_mxfp4(normal(num_rows, heads, channels) * 3)
        self.query = query.to(device, torch.bfloat16)
        self.weights = normal(num_rows, heads).to(device, torch.bfloat16)
        order = torch.randperm(len(counts) * num_blocks + 1, generator=generator)
        # Channel groups of very different size: a wrong scale shows.
        groups = len(order) * per_block, channels // 32
        spread = torch.exp2(torch.randint(-6, 7, groups, generator=generator))
        codes, scales = quant.encode_fp4(
            normal(groups[0], channels) * spread.repeat_interleave(32, 1)
        )
        self.keys = torch.cat((codes.view(torch.uint8), scales), 1).to(device)
        num_entries = num_blocks * per_block
        sees = torch.randint(0, num_entries + 1, (num_rows,), generator=generator)
        sees[0] = num_entries
        self.places = EntryView(
            order[: len(counts) * num_blocks].view(len(counts), num_blocks).to(device),
            per_block,
            torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).to(device),
            sees.to(device),
            (),
        )

    def groups(self, most: int = 8) -> tuple[Tensor, ...]:
        """Short sequences together, padded with -1; others alone, `most` and all."""
        first = [sum(self.counts[:i]) for i in range(len(self.counts))]
        short = [i for i, count in enumerate(self.counts) if count <= most]
        width = max((self.counts[i] for i in short), default=0)
        rows = [[first[i] + k if k < self.counts[i] else -1 for k in range(width)] for i in short]
        long = [
            torch.arange(first[i], first[i] + count)[None]
            for i, count in enumerate(self.counts)
            if count > most
        ]
        made = ([torch.tensor(rows)] if rows else []) + long
        return tuple(rows.to(self.device) for rows in made)

    def table(self) -> Tensor:
        entry = torch.arange(self.places.num_entries, device=self.device)
        blocks = self.places.blocks[:, entry // self.places.per_block]
        return blocks * self.places.per_block + entry % self.places.per_block

    def visible(self) -> Tensor:
        entry = torch.arange(self.places.num_entries, device=self.device)
        return entry < self.places.num_visible[:, None]

    def candidates(self, generator, width: int, block_size: int) -> Tensor:
        """int32 [T, width]: some of each row's blocks, ascending, then -1."""
        total = self.places.num_entries // block_size
        listed = torch.full((len(self.query), width), -1, dtype=torch.int32)
        for row in listed:
            count = int(torch.randint(0, width + 1, (), generator=generator))
            chosen = torch.randperm(total, generator=generator)[:count].sort().values
            row[: len(chosen)] = chosen
        return listed.to(self.device)

    def scores(self, groups=None) -> Tensor:
        groups = self.groups() if groups is None else groups
        view = self.places._replace(groups=groups)
        score = index_scores if serves(self.query) else index_scores_small
        return score(self.query, self.weights, self.keys, view)

    def expected(self, dtype: torch.dtype) -> Tensor:
        """The reference op's scores in bfloat16, or the formula in float64; -inf where unseen."""
        store = decode(self.keys, self.channels)
        table = self.table()[self.places.sequence_ids]
        if dtype == torch.bfloat16:
            query, weights = self.query[:, None], self.weights[:, None]
            scores = index.index_scores(query, weights, store.bfloat16(), table)[:, 0]
        else:
            scores = torch.stack(
                [
                    (torch.relu(q.double() @ store[rows].double().T) * w.double()[:, None]).sum(0)
                    for q, w, rows in zip(self.query, self.weights, table, strict=True)
                ]
            )
        return scores.masked_fill(~self.visible(), -INF)

    def size(self) -> Tensor:
        """Sum of |weight * query * key|: float64 [T, N]."""
        keys = decode(self.keys, self.channels).double().abs()[self.table()]
        query, weights = self.query.double().abs(), self.weights.double().abs()
        return torch.einsum("th,thc,tnc->tn", weights, query, keys[self.places.sequence_ids])

    def bound(self, of_size: float = 0.0, of_key: float = 0.0) -> Tensor:
        """What a score may be off by beside its own rounding: float64 [T, N].

        Of a head's sum S of |query * key|: float16 rounds relu(query . key) by 2**-12 of itself,
        which is a fraction of S. The tensor core cuts each product to 13 bits below the largest
        number that it adds, 2**-14 of that on average and of either sign: of 32 products and four
        steps some 11 * 2**-14 of what is a small part of S where channels are alike. Emulated, with
        12 bits, both together stay below 2**-13.9 of S for groups 2**12 apart. Float16's subnormal
        numbers add 2**-25 where a head's largest query is at least 4 and a key's scale 2**3.
        of_size: more of |query| and the key's largest scale; of_key: of |key| and largest query.
        """
        rows = self.table()[self.places.sequence_ids]
        keys = decode(self.keys, self.channels).double()
        scales = self.keys[:, self.channels // 2 :].double().amax(1)
        bounds = []
        for q, w, key, scale in zip(
            self.query.double(), self.weights.double(), keys[rows], scales[rows], strict=True
        ):
            largest, size = q.abs().amax(1)[:, None], torch.exp2(scale - 127)
            head = 2**-12 * q.abs() @ key.abs().T + 2**-30 * largest * size
            head += of_size * q.abs().sum(1)[:, None] * size + of_key * largest * key.abs().sum(1)
            bounds.append((w.abs()[:, None] * head).sum(0))
        return torch.stack(bounds)


def assert_close(actual: Tensor, expected: Tensor, bound: Tensor) -> None:
    """Equal but for one more or less in bfloat16's last place, and `bound` [T, N]."""
    assert torch.equal(actual == -INF, expected == -INF)
    seen = expected != -INF
    actual, expected, bound = actual[seen].double(), expected[seen].double(), bound[seen]
    error = (actual - expected).abs()
    worst = ((error - 2**-7 * expected.abs()) / bound.clamp_min(1e-300)).amax().item()
    print(f"error beyond bfloat16's: {worst:.3f} of its bound")
    assert bool((error <= 2**-7 * expected.abs() + bound).all())
