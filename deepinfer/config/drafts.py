"""Drafts as options: whether a model can draft, how many at once, how they are accepted."""

from typing import Final, get_args

from deepinfer.config.model import ModelConfig
from deepinfer.config.option_checks import one_of, whole
from deepinfer.config.words import Accept, DraftSchedule
from deepinfer.errors import ConfigError

# The release's block, and what the rings of a sequence can take back.
MOST_DRAFTS: Final = 5


def check_words(schedule: object, accept: object) -> None:
    """Refuse unknown words. Raises ConfigError."""
    if schedule is not None:
        one_of("draft_schedule", schedule, get_args(DraftSchedule))
    one_of("accept", accept, get_args(Accept))


def decide_schedule(
    asked: DraftSchedule | None, asked_drafts: int | None, model: ModelConfig
) -> DraftSchedule:
    """None is fixed, and off for a model without a draft module. Raises ConfigError if such a
    model is to draft all the same.
    """
    if model.num_nextn_predict_layers:
        return asked or "fixed"
    if asked in (None, "off") and (asked == "off" or asked_drafts is None):
        return "off"
    raise ConfigError(
        "drafts were asked for, but the checkpoint has no draft module",
        where="num_drafts" if asked is None else "draft_schedule",
        hint="leave it out, or set draft_schedule=off (DEEPINFER_USE_NEXTN_DECODE=0)",
    )


def decide_num_drafts(schedule: DraftSchedule, asked: int | None, model: ModelConfig) -> int:
    """Drafts of a block; 0 if none are made. Raises ConfigError for a number out of range.

    Fewer than the module was trained for make its blocks shorter.
    """
    size = model.dspark_block_size if model.num_nextn_predict_layers else MOST_DRAFTS
    most = min(size, MOST_DRAFTS)
    found = most if asked is None else whole("num_drafts", asked, 1, most)
    return 0 if schedule == "off" else found
