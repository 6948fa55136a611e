"""Bounded replay (spec 7.9): how few of a long prompt's rows the second half of the layers needs.

Of a prompt of N tokens the layers of ratio 1 see only window keys of the last `keep_tokens`
positions, N - keep_tokens and later. Entries are as ever. The rule depends on the prompt's length
alone, so that chunks, neighbours and a second computation change nothing.

mask hides those keys; compact does not run the rows that nobody will look at: from the last source
on, its entries excepted, only the kept ones. Both give the same, to the bit.
"""

from typing import Final

from deepinfer.config.drafts import MOST_DRAFTS
from deepinfer.config.model import ModelConfig
from deepinfer.config.option_checks import whole
from deepinfer.config.words import PrefixReplay, Replay
from deepinfer.errors import ConfigError

KEEP_TOKENS: Final = 140
# Rows that a step with drafts takes back at most: its drafts and the token before them.
_TAKEN_BACK: Final = MOST_DRAFTS + 1
_MOST: Final = 2**31 - 1


def least_keep_tokens(config: ModelConfig) -> int:
    """The last token's own window has to be whole, also after the rows of drafts were taken
    back."""
    return config.sliding_window + _TAKEN_BACK


def decide_keep_tokens(replay: Replay, asked: int | None, config: ModelConfig) -> int:
    """How many tokens are kept; None is 140. Raises ConfigError where that is too few for the
    model's window, or where the model cannot be replayed so; without replay any number will do.
    """
    keep_tokens = KEEP_TOKENS if asked is None else asked
    if replay == "off":
        return whole("keep_tokens", keep_tokens, 0, _MOST)
    sources = [i for i in config.kv_source_layer_ids if config.compress_ratios[i] == 1]
    if len(sources) > 1:
        # Its entries of early tokens would be made of rows that saw no window.
        raise ConfigError(
            f"layers {sources} of ratio 1 all make entries, expected one that does",
            where="replay",
            hint="leave it out: this model needs all rows in all layers",
        )
    least = least_keep_tokens(config)
    hint = (
        f"replay needs sliding_window {config.sliding_window} + {_TAKEN_BACK} at least; set "
        "keep_tokens (DEEPINFER_YOCO_PREFILL_KEEP_TOKENS) so, or replay=off"
    )
    return whole("keep_tokens", keep_tokens, least, _MOST, hint)


def decide_prefix_replay(
    asked: PrefixReplay | None, batch_invariant: bool | None, device: str
) -> PrefixReplay:
    """How the end of a prefix hit is run again. Where one seed gives one answer, a hit must not
    change it: exact, unless the user asks for the approximation by name."""
    if batch_invariant:
        return "exact"
    is_invariant = device == "cpu" and batch_invariant is None
    return asked or ("exact" if is_invariant else "bounded")


def decoder_start(num_prompt: int, keep_tokens: int | None) -> int:
    """The first position whose window keys the second half sees; 0 is all. None: no replay."""
    return 0 if keep_tokens is None else max(0, num_prompt - keep_tokens)
