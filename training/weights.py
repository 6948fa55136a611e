"""Master weights: float32, from which the network's own parameters are made before each step.

Quantisation-aware training is nothing but this step: the network computes with what the released
formats can hold, and its gradients are applied to the master weights as if nothing had been
rounded. Knows formats and names; knows nothing of losses or optimizers.
"""

import re
import zlib
from collections import defaultdict

import torch
from torch import Tensor

from deepinfer.checkpoint.formats import FP4, FP8, FP8_ROWS, Format
from deepinfer.checkpoint.inventory import inventory
from deepinfer.kernels.reference import quant
from deepinfer.model.network import Network
from deepinfer.worker.build import released_names

# Mean and deviation of a fresh weight by the parameter's name, first match. True: the deviation is
# a gain over sqrt(columns). Outputs of sublayers start small, so that streams stay what they are.
_FRESH: tuple[tuple[str, float, float, bool], ...] = (
    (r".*norm\.weight|.*\.[qk]_weight", 1.0, 0.0, False),
    (r".*(attn_sink|gate\.bias)", 0.0, 0.0, False),
    (r"embed\.weight|.*markov_head\.embed\.weight", 0.0, 0.5, False),
    (r".*engram\.table\.weight", 0.0, 0.1, False),
    (r".*hc_\w+\.scale", 0.05, 0.0, False),
    (r".*hc_\w+\.base", 0.0, 0.0, False),
    (r"head\.weight|.*markov_head\.head\.weight", 0.0, 0.3, True),
    (r".*confidence_head\.proj\.weight", 0.0, 0.1, True),
    (r".*\.(wo_b\.weight|w2|w2\.weight)", 0.0, 0.3, True),
    (r".*", 0.0, 1.0, True),
)
# hc base: a sublayer reads and writes one of the streams more than the others, and each stream
# mostly stays itself. Equal streams with equal shares would learn the same for ever.
_PRE, _PRE_OWN, _POST, _POST_OWN, _COMB_OWN = -1.5, 0.5, -0.4, 1.0, 3.0


class Master:
    """float32 values of every parameter of `network`, by the parameter's name."""

    def __init__(self, network: Network, seed: int = 0) -> None:
        """Fresh values, drawn from the names and the seed alone."""
        self.network = network
        self.parameters = dict(network.named_parameters())
        self.values = {
            name: fresh(name, parameter.shape, seed).to(parameter.device)
            for name, parameter in self.parameters.items()
        }
        self.formats = formats_of(network)
        self._groups: dict[tuple[Format, int], list[str]] = defaultdict(list)
        for name, fmt in self.formats.items():
            if fmt.block is not None:
                self._groups[fmt, self.values[name].shape[-1]].append(name)

    @torch.no_grad()
    def refresh(self, *, quantise: bool, only: str = "") -> None:
        """Make the network's parameters anew, those whose names begin with `only`.

        quantise: FP8 and FP4 weights take values of their formats. What is released in bfloat16 is
        rounded to it in any case.
        """
        names = [name for name in self.values if name.startswith(only)]
        made = {name: self._plain(name) for name in names}
        if quantise:
            for (fmt, _), members in self._groups.items():
                chosen = [name for name in members if name.startswith(only)]
                if chosen:
                    made |= self._quantised(fmt, chosen)
        torch._foreach_copy_([self.parameters[n] for n in names], [made[n] for n in names])

    def _plain(self, name: str) -> Tensor:
        values = self.values[name]
        return values.to(torch.bfloat16) if "BF16" in self.formats[name].dtypes else values

    def _quantised(self, fmt: Format, names: list[str]) -> dict[str, Tensor]:
        """Weights with equally many columns are rounded together: few calls instead of many."""
        rows = [self.values[name].flatten(0, -2) for name in names]
        # Blocks of 32 rows must not reach from one weight into the next.
        assert fmt is not FP8 or all(len(part) % 32 == 0 for part in rows)
        rounded = round_to_format(torch.cat(rows), fmt).split([len(part) for part in rows])
        return {
            name: part.view(self.values[name].shape)
            for name, part in zip(names, rounded, strict=True)
        }


def formats_of(network: Network) -> dict[str, Format]:
    """The released format of each parameter of a network, by the parameter's name."""
    c = network.setup.config
    specs = inventory(c)
    found = {}
    for name, parameter in network.named_parameters():
        pairs = released_names(name, parameter, c.num_nextn_predict_layers)
        found[name] = specs[table_name(next(pairs)[1])].format
    return found


def table_name(name: str) -> str:
    """The released name of an Engram table held as a parameter; other names as they are."""
    return name.replace(".engram.table.", ".engram.embed.")


def round_to_format(values: Tensor, fmt: Format) -> Tensor:
    """float32 [R, C] -> the nearest values that the format holds, as the checkpoint's writer and
    reader make them.
    """
    if fmt is FP4:
        return quant.round_trip_mxfp4(values)  # the same groups and scales, without a packed detour
    encode, decode = {
        FP8: (quant.encode_fp8, quant.decode_fp8),
        FP8_ROWS: (quant.encode_fp8_rows, quant.decode_fp8_rows),
    }[fmt]
    stored, scale = encode(values)
    return decode(stored, quant.decode_ue8m0(scale))


def fresh(name: str, shape: torch.Size, seed: int) -> Tensor:
    """A first value for a parameter, float32 on the CPU."""
    mean, deviation, is_gain = next(row for pattern, *row in _FRESH if re.fullmatch(pattern, name))
    if is_gain:
        deviation /= shape[-1] ** 0.5
    # Hashed together: the generator looks at 32 bits of its seed only.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = torch.randn(shape, generator=generator) * deviation + mean
    if name.endswith("base"):
        values += _stream_preferences(name, values.numel())
    return values


def _stream_preferences(name: str, num_coefficients: int) -> Tensor:
    """The base of pre [M], post [M] and comb [M, M] of a sublayer."""
    num = next(m for m in range(1, 17) if m * (m + 2) == num_coefficients)
    layer_id = int(re.search(r"\d+", name)[0])  # type: ignore[index]
    own = torch.zeros(num)
    own[(2 * layer_id + ("hc_ffn" in name)) % num] = 1.0
    comb = torch.eye(num).flatten() * _COMB_OWN
    return torch.cat((_PRE + _PRE_OWN * own, _POST + _POST_OWN * own, comb))
