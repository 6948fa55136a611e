"""`LLM`: generation from Python, results in the order of the prompts."""

import logging
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from deepinfer.config.engine import EngineConfig, engine_args
from deepinfer.engine.loading import LoadedModel, load_model
from deepinfer.errors import RequestError
from deepinfer.front.collector import Collector
from deepinfer.front.intake import paired, params_of_each
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
        self._open: dict[str, _Open] = {}
        # Callers in several threads take turns, a step at a time.
        self._turn = threading.RLock()

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
        _ = self._loaded  # a closed LLM is refused before anything else
        texts, ids = paired(prompts, prompt_token_ids)
        params = params_of_each(sampling_params, len(texts))
        results: list[RequestOutput | _Open] = []
        try:
            for text, token_ids, one in zip(texts, ids, params, strict=True):
                try:
                    results.append(self._submit(text, token_ids, one))
                except RequestError as error:
                    results.append(RequestOutput(text, [], [], error))
            self._wait([r for r in results if isinstance(r, _Open)], use_tqdm)
        finally:
            self._close([r for r in results if isinstance(r, _Open)])
        return [r.collector.output() if isinstance(r, _Open) else r for r in results]

    def _wait(self, requests: "list[_Open]", use_tqdm: bool) -> None:
        """Step until all have finished, with a bar where somebody can see it."""
        hidden = not use_tqdm or not sys.stderr.isatty()
        with tqdm(total=len(requests), desc="prompts", disable=hidden) as bar:
            while any(not request.collector.finished for request in requests):
                self._step()
                bar.update(sum(r.collector.finished for r in requests) - bar.n)

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> Iterator[str]:
        """The text that follows `prompt`, piece by piece, never half a character.

        prompt: text or token ids. Raises RequestError if it is refused, or if sampling_params ask
        for more than one continuation. A stream that is closed early ends its request.
        """
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        (params,) = params_of_each(sampling_params, 1)
        if params.n != 1:
            raise RequestError(
                f"{params.n} continuations", field="n", hint="a stream has one; use generate"
            )
        request = self._submit(text, ids, params)
        try:
            while self._loaded:
                while request.pieces:
                    yield request.pieces.popleft()
                if request.collector.finished:
                    return
                self._step()
        finally:
            self._close([request])

    @property
    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise RequestError("the LLM was closed", field="llm", hint="make a new one")
        return self._model

    def _submit(self, text: object, ids: object, params: SamplingParams) -> "_Open":
        """Check a request and give it to the engine. Raises RequestError."""
        model = self._loaded
        prompt_ids = checked_prompt(text, ids, model.tokenizer, model.config.vocab_size)
        check_against(params, model.config.vocab_size, model.options.max_model_len)
        seed = params.seed
        if seed is None and model.options.seed is not None:
            seed = self._seeds.getrandbits(64)
        with self._turn:
            request_id = str(self._num_requests)
            self._num_requests += 1
            prompt = text if isinstance(text, str) else None
            request = _Open(Collector(request_id, prompt, prompt_ids, params, model.tokenizer))
            self._open[request_id] = request
            try:
                model.engine.submit(request_id, prompt_ids, params, seed)
            except BaseException:
                self._close([request])
                raise
        return request

    def _step(self) -> None:
        """One step of the engine, for everybody who waits: callers may take turns."""
        engine = self._loaded.engine
        with self._turn:
            for delta in engine.step():
                request = self._open[delta.request_id]
                piece, stopped = request.collector.add(delta)
                request.pieces.append(piece)
                if stopped:
                    engine.finish(delta.request_id, delta.choice, "stop")

    def _close(self, requests: "list[_Open]") -> None:
        """Whoever leaves, early or not, takes all along: no request goes on unseen."""
        with self._turn:
            for request in requests:
                request_id = request.collector.request_id
                del self._open[request_id]
                if not request.collector.finished and self._model is not None:
                    self._model.engine.abort(request_id)


@dataclass(frozen=True)
class _Open:
    """A request whose caller has not left. pieces: text that the caller has not taken yet."""

    collector: Collector
    pieces: deque[str] = field(default_factory=deque)
