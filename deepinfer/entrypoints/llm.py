"""`LLM`: generation from Python, results in the order of the prompts."""

import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from deepinfer.config.engine import EngineConfig, engine_args
from deepinfer.engine.loading import LoadedModel, load_model
from deepinfer.errors import RequestError
from deepinfer.front.collector import Collector
from deepinfer.front.intake import prompt_token_ids as checked_prompt
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams, check_against
from deepinfer.tokenizer.tokenizer import Tokenizer

_LOG = logging.getLogger("deepinfer")


class LLM:
    """A loaded model.

    model: a folder or a Hugging Face id; None is DEEPINFER_HF_MODEL_DIR, else the demo model, else
        a random toy.
    may_download_large: consent to a download of more than 5 GiB.
    report: gets each line that a user should see before the model runs.
    options: the fields of EngineArgs (dtype="float32", max_num_seqs=16, ...); an unknown one is
        refused.
    Raises ConfigError or CheckpointError when the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        may_download_large: bool = False,
        report: Callable[[str], None] = _LOG.warning,
        **options: Any,
    ) -> None:
        args = engine_args(options)
        self._model: LoadedModel | None = load_model(
            model, args, may_download_large=may_download_large, report=report
        )
        self._seeds = random.Random(args.seed)
        self._num_requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory. The object is of no use afterwards."""
        self._model = None

    @property
    def options(self) -> EngineConfig:
        """What was decided for every option."""
        return self._loaded.options

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._loaded.tokenizer

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Continue each prompt; one result a prompt, in order.

        prompts: text, in which the spelling of a control token is plain text; or prompt_token_ids:
        token ids, taken as they are. sampling_params: one for all, or one for each; default
        SamplingParams(). A prompt that is refused gives a result with `error` set and costs the
        others nothing. Raises RequestError when the arguments do not fit together.
        """
        texts, ids = _requests(prompts, prompt_token_ids)
        params = _params(sampling_params, len(texts))
        results: list[RequestOutput | Collector] = []
        for text, token_ids, one in zip(texts, ids, params, strict=True):
            try:
                results.append(self._submit(text, token_ids, one))
            except RequestError as error:
                results.append(RequestOutput(text, [], [], error))
        running = {c.request_id: c for c in results if isinstance(c, Collector)}
        hidden = not use_tqdm or not sys.stderr.isatty()
        try:
            with tqdm(total=len(running), desc="prompts", disable=hidden) as bar:
                for request_id, _ in self._run(running):
                    bar.update(running[request_id].finished)
        finally:
            self._abandon(running)
        return [r.output() if isinstance(r, Collector) else r for r in results]

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> Iterator[str]:
        """The text that follows `prompt`, piece by piece, never half a character.

        prompt: text or token ids. Raises RequestError if it is refused, or if sampling_params ask
        for more than one continuation. A stream that is closed early ends its request.
        """
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        params = sampling_params or SamplingParams()
        if params.n != 1:
            raise RequestError(
                f"{params.n} continuations", field="n", hint="a stream has one; use generate"
            )
        collector = self._submit(text, ids, params)
        running = {collector.request_id: collector}
        try:
            for _, piece in self._run(running):
                yield piece
        finally:
            self._abandon(running)

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise RequestError("the LLM was closed", field="llm", hint="make a new one")
        return self._model

    def _submit(
        self, text: str | None, ids: Sequence[int] | None, params: SamplingParams
    ) -> Collector:
        """Check a request and give it to the engine. Raises RequestError."""
        model = self._loaded
        prompt_ids = checked_prompt(text, ids, model.tokenizer, model.config.vocab_size)
        check_against(params, model.config.vocab_size, model.options.max_model_len)
        request_id = str(self._num_requests)
        seed = params.seed
        if seed is None and model.options.seed is not None:
            seed = self._seeds.getrandbits(64)
        model.engine.submit(request_id, prompt_ids, params, seed)
        self._num_requests += 1
        return Collector(request_id, text, prompt_ids, params, model.tokenizer)

    def _run(self, running: dict[str, Collector]) -> Iterator[tuple[str, str]]:
        """Step until all of `running` have finished: (request id, new text) of each news."""
        engine = self._loaded.engine
        while not all(collector.finished for collector in running.values()):
            for delta in engine.step():
                collector = running.get(delta.request_id)
                if collector is None:
                    continue  # of a stream that is open besides
                piece, stopped = collector.add(delta)
                if stopped:
                    engine.finish(delta.request_id, delta.choice, "stop")
                yield delta.request_id, piece

    def _abandon(self, running: dict[str, Collector]) -> None:
        """Whoever left early takes nothing along: no request goes on unseen."""
        for request_id, collector in running.items():
            if not collector.finished and self._model is not None:
                self._model.engine.abort(request_id)


def _requests(
    prompts: str | Sequence[str] | None, token_ids: Sequence[Sequence[int]] | None
) -> tuple[Sequence[str | None], Sequence[Sequence[int] | None]]:
    """Text and ids of each request; where both are given the ids count."""
    texts = [prompts] if isinstance(prompts, str) else prompts
    if texts is None and token_ids is None:
        raise RequestError(
            "neither prompts nor prompt_token_ids", field="prompts", hint="give one of them"
        )
    if texts is not None and token_ids is not None and len(texts) != len(token_ids):
        raise RequestError(
            f"{len(texts)} prompts and {len(token_ids)} lists of token ids",
            field="prompt_token_ids",
            hint="give one list for each prompt, or leave one of the two out",
        )
    nothing: list[None] = [None] * len(texts if texts is not None else token_ids or ())
    return (nothing if texts is None else texts), (nothing if token_ids is None else token_ids)


def _params(
    given: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * count
    if len(given) != count:
        raise RequestError(
            f"{len(given)} sampling_params for {count} prompts",
            field="sampling_params",
            hint="give one for all, or one for each prompt",
        )
    return list(given)
