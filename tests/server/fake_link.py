"""A link without an engine: what it says of a request is written down beforehand."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from deepinfer.config.model import read_model_config
from deepinfer.messages import Delta, EngineStats
from deepinfer.server.channel import Channel
from deepinfer.server.wire import Abort, Finish, ModelInfo, Submit

News = Delta | Exception


class FakeLink:
    """Says to each request the `script`, an item a turn of the event loop. told: by channels."""

    def __init__(self, folder: Path, script: Iterable[News]) -> None:
        vocab_size = read_model_config(folder).vocab_size
        self.info = ModelInfo(str(folder), vocab_size, 600, {}, [])
        self.state, self.num_restarts = "ready", 0
        self.stats = self.past_stats = EngineStats()
        self.script = list(script)
        self.told: list[Abort | Finish] = []
        self.submitted: list[Submit] = []

    def submit(self, submit: Submit) -> Channel:
        """A channel that is spoken to later."""
        self.submitted.append(submit)
        channel = Channel("r", submit.params.n, self.told.append, lambda _: None)
        loop = asyncio.get_running_loop()
        for turn, item in enumerate(self.script):
            if isinstance(item, Delta):
                loop.call_later(turn / 200, channel.put, item)
            else:
                loop.call_later(turn / 200, channel.fail, item)
        return channel
