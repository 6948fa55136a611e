"""Checks of single configuration values, and of values that must fit each other.

A check is data: what is expected, in words, and a function that accepts a value or not. Knows
nothing of files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from deepinfer.config import engram
from deepinfer.errors import ConfigError

if TYPE_CHECKING:
    from deepinfer.config.model import ModelConfig

REQUIRED: Final = object()


@dataclass(frozen=True, slots=True)
class Check:
    """`expected` in words; `accept(value)` tells whether it is so; `convert` makes it final."""

    expected: str
    accept: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value

    def __call__(self, value: object, where: str) -> Any:
        """The value in its final form. Raises ConfigError naming `where`."""
        if not self.accept(value):
            raise ConfigError(
                f"found {shown(value)}, expected {self.expected}",
                where=where,
                hint="correct the value, or take config.json from the checkpoint's own repository",
            )
        return self.convert(value)


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a configuration: its name, its check, and the value it has when absent."""

    name: str
    check: Check
    default: object = REQUIRED


def shown(value: object) -> str:
    """`value` as a short text for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def exactly(wanted: object) -> Check:
    """The value itself; 0 and 0.0 are the same, 0 and false are not."""
    same_kind = bool if isinstance(wanted, bool) else (int, float, str, list)
    return Check(
        shown(wanted),
        lambda v: (
            v == wanted
            and isinstance(v, same_kind)
            and isinstance(v, bool) == isinstance(wanted, bool)
        ),
    )


def one_of(*wanted: str) -> Check:
    """One of the given words."""
    return Check(
        "one of " + ", ".join(map(repr, wanted)), lambda v: isinstance(v, str) and v in wanted
    )


def boolean() -> Check:
    """true or false."""
    return Check("true or false", lambda v: isinstance(v, bool))


def mapping() -> Check:
    """An object with keys."""
    return Check("an object", lambda v: isinstance(v, dict))


def integer(low: int, high: int = 2**53, *, multiple_of: int = 1) -> Check:
    """A whole number in [low, high] that `multiple_of` divides."""
    words = f"a whole number of at least {low}"
    if high < 2**53:
        words += f" and at most {high}"
    if multiple_of > 1:
        words += f" that is a multiple of {multiple_of}"
    return Check(words, lambda v: _is_int(v) and low <= v <= high and v % multiple_of == 0)


def number(low: float, high: float = float("inf"), *, above: bool = False) -> Check:
    """A finite number in [low, high], or in (low, high] with `above`."""
    words = f"a finite number {'above' if above else 'of at least'} {low:g}"
    if isfinite(high):
        words += f" and at most {high:g}"
    return Check(
        words,
        lambda v: _is_number(v) and (v > low if above else v >= low) and v <= high,
        float,
    )


def integers() -> Check:
    """A list of whole numbers of at least 0."""
    return Check(
        "a list of whole numbers of at least 0",
        lambda v: isinstance(v, list) and all(_is_int(x) and x >= 0 for x in v),
        tuple,
    )


def nullable(check: Check) -> Check:
    """null, or what `check` accepts."""
    return Check(
        f"null or {check.expected}",
        lambda v: v is None or check.accept(v),
        lambda v: None if v is None else check.convert(v),
    )


def check_together(config: "ModelConfig") -> None:
    """Refuse values that are fine alone but contradict each other. Raises ConfigError."""
    c = config
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"):
        _must(
            getattr(c, key) < c.vocab_size, key, getattr(c, key), f"below vocab_size {c.vocab_size}"
        )
    for key in ("engram_pad_token_id", "dspark_noise_token_id"):
        value = getattr(c, key)
        _must(value < c.vocab_size, f"text_config.{key}", value, f"below vocab_size {c.vocab_size}")

    text = "text_config."
    _must(
        c.num_attention_heads % c.o_groups == 0,
        text + "o_groups",
        c.o_groups,
        f"a divisor of num_attention_heads {c.num_attention_heads}",
    )
    _must(
        c.o_groups * c.o_lora_rank % 32 == 0,
        text + "o_lora_rank",
        c.o_lora_rank,
        f"o_groups * o_lora_rank to be a multiple of 32 (o_groups is {c.o_groups})",
    )
    rotary = min(c.head_dim, c.index_head_dim)
    _must(
        c.qk_rope_head_dim <= rotary,
        text + "qk_rope_head_dim",
        c.qk_rope_head_dim,
        f"at most {rotary}, the smaller of head_dim and index_head_dim",
    )
    for chosen, experts in (
        ("num_experts_per_tok", "n_routed_experts"),
        ("dspark_num_experts_per_tok", "dspark_n_routed_experts"),
    ):
        limit = getattr(c, experts)
        _must(
            getattr(c, chosen) <= limit,
            text + chosen,
            getattr(c, chosen),
            f"at most {experts} {limit}",
        )
    _check_ratios(c)
    _check_sources(c)
    _check_engram(c)


def _must(condition: bool, key: str, found: object, expected: str) -> None:
    if not condition:
        raise ConfigError(
            f"found {shown(found)}, expected {expected}",
            where=f"config.json: {key}",
            hint="the keys of config.json contradict each other; take the checkpoint's own file",
        )


def _check_ratios(c: "ModelConfig") -> None:
    """Window layers first, then ratio 2, then ratio 1, then the draft blocks (spec 1.1, 7.9)."""
    key, ratios = "text_config.compress_ratios", c.compress_ratios
    total = c.num_hidden_layers + c.num_nextn_predict_layers
    _must(
        len(ratios) == total,
        key,
        f"{len(ratios)} entries",
        f"{total}: num_hidden_layers + num_nextn_predict_layers",
    )
    _must(set(ratios) <= {0, 1, 2}, key, list(ratios), "only 0 (window), 2 and 1")
    backbone, drafts = ratios[: c.num_hidden_layers], ratios[c.num_hidden_layers :]
    _must(not any(drafts), key, list(drafts), "0 for each of the draft blocks at the end")
    order = [(0, 2, 1).index(ratio) for ratio in backbone]
    _must(order == sorted(order), key, list(backbone), "all 0, then all 2, then all 1")


def _check_sources(c: "ModelConfig") -> None:
    """Every layer with a ratio has a source before it, of its own ratio (spec 7.8)."""
    text, layers = "text_config.", range(c.num_hidden_layers)
    for key in (
        "kv_source_layer_ids",
        "index_source_layer_ids",
        "engram_layer_ids",
        "dspark_target_layer_ids",
    ):
        ids = getattr(c, key)
        _must(
            list(ids) == sorted(set(ids)), text + key, list(ids), "each layer once, in rising order"
        )
        _must(set(ids) <= set(layers), text + key, list(ids), f"layers below {c.num_hidden_layers}")
    kv, index = set(c.kv_source_layer_ids), set(c.index_source_layer_ids)
    _must(
        all(c.compress_ratios[i] for i in kv | index),
        text + "index_source_layer_ids",
        sorted(kv | index),
        "sources only where compress_ratios is not 0",
    )
    _must(
        kv <= index,
        text + "index_source_layer_ids",
        sorted(index),
        f"every KV source among them ({sorted(kv)}): new entries need a new selection",
    )
    _must(
        c.index_k_source_layer_ids == c.kv_source_layer_ids,
        text + "index_k_source_layer_ids",
        list(c.index_k_source_layer_ids),
        "the KV sources: an index key is projected from the entry its own layer compressed",
    )
    starts = [
        i
        for i in layers
        if c.compress_ratios[i] and (i == 0 or c.compress_ratios[i - 1] != c.compress_ratios[i])
    ]
    _must(
        set(starts) <= kv,
        text + "kv_source_layer_ids",
        sorted(kv),
        f"a source wherever the ratio changes (layers {starts})",
    )
    source = c.candidate_source_layer_id
    _must(
        source is None or source in index,
        text + "candidate_source_layer_id",
        source,
        f"null or one of index_source_layer_ids {sorted(index)}",
    )


def _check_engram(c: "ModelConfig") -> None:
    key = "text_config.engram_num_embeddings"
    _must(
        len(c.engram_num_embeddings) == len(c.engram_layer_ids),
        key,
        list(c.engram_num_embeddings),
        "one height for each of engram_layer_ids",
    )
    # A giant start would make the search for primes run for hours: the published one is 16 million.
    _must(
        c.engram_vocab_size <= 2**32,
        "text_config.engram_vocab_size",
        c.engram_vocab_size,
        f"at most {2**32}",
    )
    heights = tuple(sum(row) for row in engram.bucket_primes(c))
    _must(
        c.engram_num_embeddings == heights,
        key,
        list(c.engram_num_embeddings),
        f"{list(heights)}, the sums of the bucket primes that follow from engram_vocab_size",
    )
