"""`LLM`: generation from Python, results in the order of the prompts."""

import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from deepinfer.config.engine import engine_args
from deepinfer.engine.generate import generate, prompt_logprobs
from deepinfer.engine.loading import load_model
from deepinfer.errors import RequestError
from deepinfer.outputs import CompletionOutput, FinishReason, RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.tokenizer.detokenize import Detokenizer
from deepinfer.tokenizer.tokenizer import Tokenizer

_LOG = logging.getLogger("deepinfer")


class LLM:
    """A loaded model.

    model: a folder or a Hugging Face id; None is the demo model, or a random toy if there is none.
    may_download_large: consent to a download of more than 5 GiB.
    report: gets each line that a user should see before the model runs.
    options: the fields of EngineArgs (dtype="float32", device="cpu", ...); an unknown one is
    refused. Raises ConfigError or CheckpointError when the model cannot be loaded.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        may_download_large: bool = False,
        report: Callable[[str], None] = _LOG.warning,
        **options: Any,
    ) -> None:
        args = engine_args(options)
        self._model = load_model(model, args, may_download_large=may_download_large, report=report)

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
        self._model = None  # type: ignore[assignment]

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._model.tokenizer

    def generate(
        self,
        prompts: str | Sequence[str] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt; one result a prompt, in order.

        prompts: text, in which the spelling of a control token is plain text; or prompt_token_ids:
        token
        ids, taken as they are. sampling_params: one for all, or one for each; default
        SamplingParams(). A prompt that is refused gives a result with `error` set and costs the
        others nothing. Raises RequestError when the arguments do not fit together.
        """
        texts, ids = _requests(prompts, prompt_token_ids)
        params = _params(sampling_params, len(texts))
        return [self._one(*request) for request in zip(texts, ids, params, strict=True)]

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> Iterator[str]:
        """The text that follows `prompt`, piece by piece, never half a character.

        prompt: text or token ids. Raises RequestError if it is refused.
        """
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        detokenizer = Detokenizer(self._model.tokenizer)
        for token_id in self._tokens(text, ids, sampling_params or SamplingParams()):
            yield detokenizer.push(token_id)
        yield detokenizer.finish()

    def prompt_logprobs(self, token_ids: Sequence[int]) -> list[float]:
        """Natural log of the probability of every token but the first, given those before it."""
        return prompt_logprobs(self._model, token_ids)

    def _one(
        self, text: str | None, ids: Sequence[int] | None, params: SamplingParams
    ) -> RequestOutput:
        token_ids: list[int] = []
        try:
            prompt_ids = self._prompt_ids(text, ids)
            token_ids.extend(generate(self._model, prompt_ids, params))
        except RequestError as error:
            return RequestOutput(text, list(ids or ()), [], error)
        stopped = token_ids[-1] == self._model.tokenizer.eos_id and not params.ignore_eos
        reason: FinishReason = "stop" if stopped else "length"
        completion = CompletionOutput(0, self._model.tokenizer.decode(token_ids), token_ids, reason)
        return RequestOutput(text, prompt_ids, [completion])

    def _tokens(
        self, text: str | None, ids: Sequence[int] | None, params: SamplingParams
    ) -> Iterator[int]:
        return generate(self._model, self._prompt_ids(text, ids), params)

    def _prompt_ids(self, text: str | None, ids: Sequence[int] | None) -> list[int]:
        if ids is not None:
            return list(ids)
        assert text is not None
        if text == "":
            raise RequestError("the prompt is empty", field="prompt", hint="give some text")
        return self._model.tokenizer.encode(text)


def _requests(
    prompts: str | Sequence[str] | None, token_ids: Sequence[Sequence[int]] | None
) -> tuple[list[str | None], list[Sequence[int] | None]]:
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
    count = len(texts if texts is not None else token_ids or ())
    nothing: list[None] = [None] * count
    return list(texts if texts is not None else nothing), list(
        token_ids if token_ids is not None else nothing
    )


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
