"""`LLM`: generation from Python, results in the order of the prompts."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from deepinfer.config.engine import engine_args
from deepinfer.config.engine_config import EngineConfig
from deepinfer.engine.loading import load_model
from deepinfer.entrypoints.open_requests import OpenRequest, OpenRequests
from deepinfer.errors import RequestError
from deepinfer.front.chat import ChatMessage, ChatOutput, prepare_chat
from deepinfer.front.intake import paired, params_of_each
from deepinfer.outputs import RequestOutput
from deepinfer.recipe.events import Event
from deepinfer.sampling_params import SamplingParams
from deepinfer.scheduler.draft_stats import DraftStats
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
        loaded = load_model(model, args, may_download_large=may_download_large, report=report)
        self._requests = OpenRequests(loaded, random.Random(args.seed))

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
        self._requests.close()

    @property
    def options(self) -> EngineConfig:
        """What was decided for every option."""
        return self._requests.model.options

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._requests.model.tokenizer

    def draft_stats(self) -> DraftStats:
        """What became of all drafts since the start. No answer depends on it."""
        return self._requests.model.engine.drafting.stats.copy()

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
        _ = self._requests.model  # a closed LLM is refused before anything else
        texts, ids = paired(prompts, prompt_token_ids)
        params = params_of_each(sampling_params, len(texts))
        submits = [
            partial(self._requests.submit, text, token_ids, one)
            for text, token_ids, one in zip(texts, ids, params, strict=True)
        ]
        return [
            RequestOutput(text, [], [], found)
            if isinstance(found, RequestError)
            else found.collector.output()
            for text, found in zip(texts, self._requests.run(submits, use_tqdm), strict=True)
        ]

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        **options: Any,
    ) -> list[ChatOutput]:
        """Answer each conversation; one result a conversation, in order.

        messages: one conversation or several, as Chat Completions has them. options: tools and
        tool_choice; response_format, which is enforced; thinking: true (the default), false, or how
        much of it: "low", "high", "max". sampling_params: one for all, or one for each; by default
        temperature 1 and as many tokens as the recipe allows. A conversation that is refused gives
        a result with `error` set and costs the others nothing.
        """
        first = messages[0] if isinstance(messages, Sequence) and messages else None
        given: list[Any] = list(messages) if isinstance(first, list | tuple) else [messages]
        params: list[Any] = [None] * len(given)
        if sampling_params is not None:
            params = params_of_each(sampling_params, len(given))
        submits = [
            partial(self._submit_chat, conversation, asked, options)
            for conversation, asked in zip(given, params, strict=True)
        ]
        return [
            ChatOutput((), RequestOutput(None, [], [], found))
            if isinstance(found, RequestError)
            else found.chat_output()
            for found in self._requests.run(submits, use_tqdm)
        ]

    def stream(
        self, prompt: str | Sequence[int], sampling_params: SamplingParams | None = None
    ) -> Iterator[str]:
        """The text that follows `prompt`, piece by piece, never half a character.

        prompt: text or token ids. Raises RequestError if it is refused, or if sampling_params ask
        for more than one continuation. A stream that is closed early ends its request.
        """
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        (params,) = params_of_each(sampling_params, 1)
        _check_one(params)
        request = self._requests.submit(text, ids, params)
        for _ in self._requests.steps(request):
            while request.pieces:
                yield request.pieces.popleft()

    def stream_chat(
        self,
        messages: Sequence[ChatMessage],
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> Iterator[Event]:
        """The answer to one conversation as it comes: the events of deepinfer.recipe.events.

        Arguments as for `chat`, errors as for `stream`.
        """
        if sampling_params is not None:
            _check_one(sampling_params)
        request = self._submit_chat(messages, sampling_params, options)
        events = request.answers[0].events
        for _ in self._requests.steps(request):
            while events:
                yield events.pop(0)

    def _submit_chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None,
        options: Mapping[str, Any],
    ) -> OpenRequest:
        """Check a conversation and give it to the engine. Raises RequestError."""
        model = self._requests.model
        limit = model.options.max_model_len
        chat = prepare_chat(messages, params, model.tokenizer, limit, **options)
        return self._requests.submit(chat.prompt, chat.prompt_ids, chat.params, chat)


def _check_one(params: SamplingParams) -> None:
    if params.n != 1:
        raise RequestError(
            f"{params.n} continuations", field="n", hint="a stream has one; use generate or chat"
        )
