"""Requests that come, go on, end and are given up, for minutes: does anything drift?

    python -m deepinfer.bench.soak MODEL DEVICE REQUESTS SECONDS

So many requests run at all times. Half of them begin with one of a few long prompts that others
had, so that prefixes are found; one in eight is given up halfway. A line every ten seconds, and the
last ones against the first: time of a step, and memory that is held.
"""

import random
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

import torch

from deepinfer.bench.offline import random_prompts
from deepinfer.config.engine import engine_args
from deepinfer.engine.engine import Engine
from deepinfer.engine.loading import load_model
from deepinfer.sampling_params import SamplingParams

_WINDOW_S = 10.0
_SHARED, _SHARED_LEN, _OWN_LEN = 8, 512, 40
_MOST_TOKENS = 200


@dataclass
class Window:
    """Some seconds of it. device_bytes: that torch holds; host_bytes: the most the process had."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    ended: int = 0
    aborted: int = 0
    device_bytes: int = 0
    host_bytes: int = 0

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.seconds / self.steps

    @property
    def line(self) -> str:
        """For a table."""
        return (
            f"{self.step_ms:8.2f} ms a step {self.tokens / self.seconds:9,.0f} tokens/s "
            f"{self.ended:6} ended {self.aborted:5} given up "
            f"{self.device_bytes / 1e9:8.3f} GB on the device {self.host_bytes / 1e9:8.3f} GB here"
        )


@dataclass
class _Crowd:
    """Requests of one engine, kept at a number."""

    engine: Engine
    prompts: list[list[int]]
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    numbers: Iterator[int] = field(default_factory=count)
    left: dict[str, int] = field(default_factory=dict)

    def fill(self, size: int) -> None:
        while len(self.left) < size:
            name, rng = str(next(self.numbers)), self.rng
            own = rng.choices(self.prompts[0], k=_OWN_LEN)
            shared = rng.choice(self.prompts) if rng.random() < 0.5 else []
            length = rng.randint(20, _MOST_TOKENS)
            params = SamplingParams(
                temperature=rng.choice((0.0, 1.0)), max_tokens=length, ignore_eos=True
            )
            self.engine.submit(name, [*shared, *own], params)
            self.left[name] = length // 2 if rng.random() < 0.125 else -1

    def step(self, window: Window) -> None:
        for delta in self.engine.step():
            name = delta.request_id
            window.tokens += delta.token_id is not None
            if delta.finish_reason is not None:
                window.ended += 1
                self.left.pop(name, None)
            elif self.left.get(name, -1) > 0:
                self.left[name] -= 1
                if self.left[name] <= 0:
                    self.engine.abort(name)
                    del self.left[name]
                    window.aborted += 1
        window.steps += 1


def soak(engine: Engine, prompts: list[list[int]], size: int, seconds: float) -> Iterator[Window]:
    """Windows as they end. prompts: those that requests share."""
    crowd, end = _Crowd(engine, prompts), perf_counter() + seconds
    while perf_counter() < end:
        window, start = Window(), perf_counter()
        while perf_counter() < min(end, start + _WINDOW_S):
            crowd.fill(size)
            crowd.step(window)
        window.seconds = perf_counter() - start
        if torch.cuda.is_available():
            window.device_bytes = torch.cuda.memory_reserved()
        window.host_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield window


def main(arguments: list[str]) -> int:
    """Run, and say what became of the first third's figures in the last third."""
    if len(arguments) != 4:
        sys.stdout.write(__doc__ or "")
        return 2
    model, device, size, seconds = arguments
    options = {"device": device, "max_num_seqs": int(size), "max_model_len": 1024}
    loaded = load_model(model, engine_args(options))
    prompts = random_prompts(loaded.config, _SHARED, _SHARED_LEN, 0)
    windows = []
    for window in soak(loaded.engine, prompts, int(size), float(seconds)):
        windows.append(window)
        sys.stdout.write(window.line + "\n")
        sys.stdout.flush()
    stats = loaded.engine.stats()
    loaded.engine.close()
    third = max(1, len(windows) // 3)
    first, last = windows[third : 2 * third] or windows, windows[-third:]
    ratio = _mean_ms(last) / _mean_ms(first)
    grown = last[-1].device_bytes - first[0].device_bytes
    sys.stdout.write(
        f"the last third against the one before: {ratio:.3f} of the time a step, "
        f"{grown / 1e6:+.1f} MB on the device, "
        f"{(last[-1].host_bytes - first[0].host_bytes) / 1e6:+.1f} MB here\n{stats}\n"
    )
    return 0


def _mean_ms(windows: list[Window]) -> float:
    return 1e3 * sum(one.seconds for one in windows) / sum(one.steps for one in windows)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
