"""What the HTTP process knows while it serves: the link to the engine, the model's host side, its
settings, and what it has counted.

Knows no route and no protocol. Changed on the event loop alone, so nothing here is locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from deepinfer.config.model import ModelConfig, read_model_config
from deepinfer.messages import EngineStats
from deepinfer.server.admission import Admission
from deepinfer.server.engine_totals import added
from deepinfer.server.live import Speed
from deepinfer.server.settings import ServerSettings
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from deepinfer.server.link import EngineLink
    from deepinfer.server.wire import ModelInfo

FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BETWEEN_TOKENS_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Histogram:
    """How often values lay at or below each bound.

    Attributes: `bounds`, ascending; `counts`, one for each bound and one for all above, each by
    itself (not added up); `total`, the sum of the values, `num_values`, how many there were.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.num_values = 0

    def observe(self, value: float, count: int = 1) -> None:
        """Take a value, or `count` equal ones."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count
        self.num_values += count


@dataclass
class HttpStats:
    """What was counted since the start; engines come and go meanwhile.

    requests: (route, status) -> requests that have ended; route as in the table of routes ("other"
        for a path that is none), status as a number, 499 where the client left before the answer.
    in_flight: requests that have not ended. prompt_tokens, cached_tokens, output_tokens: of all
        answers, as far as they came. aborted: answers that ended because the client left.
    first_token_s: from the arrival of a request to its first token. between_tokens_s: from token to
        token of one continuation; tokens of one step count as evenly spread.
    """

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    in_flight: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    aborted: int = 0
    first_token_s: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN_BOUNDS_S))
    between_tokens_s: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS_BOUNDS_S))


@dataclass(frozen=True)
class ServedModel:
    """The model's side that needs no weights.

    names: by which requests may call it, the first of them the one that answers show where a
    request names none. seeds: for requests without one, if the engine was given a seed.
    """

    info: ModelInfo
    config: ModelConfig
    tokenizer: Tokenizer
    names: tuple[str, ...]
    seeds: Random | None


@dataclass
class ServerState:
    """Everything that routes share. model: None until the engine was ready for the first time.

    is_draining: the server is about to end and takes no new requests.
    """

    link: EngineLink
    settings: ServerSettings
    admission: Admission
    started_at: int
    stats: HttpStats = field(default_factory=HttpStats)
    speed: Speed = field(default_factory=Speed)
    model: ServedModel | None = None
    is_draining: bool = False

    @property
    def waiting(self) -> int:
        """Requests that have no first token yet."""
        return self.admission.num_waiting

    @property
    def engine_stats(self) -> EngineStats:
        """How the engine stands; its counts go on from those of engines before it."""
        return added(self.link.past_stats, self.link.stats)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, once there is one."""
        return None if self.model is None else self.model.tokenizer

    @property
    def config(self) -> ModelConfig | None:
        """The model's config.json, once it was read."""
        return None if self.model is None else self.model.config

    @property
    def model_name(self) -> str:
        """What the model is called; empty until it is known."""
        if self.settings.served_names:
            return self.settings.served_names[0]
        return "" if self.model is None else self.model.names[0]


def served_model(info: ModelInfo, settings: ServerSettings) -> ServedModel:
    """Read config and tokenizer of the engine's model. Raises ConfigError."""
    folder = Path(info.folder)
    config = read_model_config(folder)
    names = settings.served_names or (folder.resolve().name,)
    seed = info.options.get("seed")
    seeds = None if seed is None else Random(seed)
    return ServedModel(info, config, load_tokenizer(folder, config), names, seeds)
