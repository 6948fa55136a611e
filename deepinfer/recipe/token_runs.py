"""Tokens of an answer to text, with control tokens told apart from text (spec recipe 7.4).

Knows bytes, UTF-8 and the added vocabulary. Does not know stages.

In the text that comes out, a control token is one character that no decoded text can hold, half a
surrogate pair. So patterns of control tokens match tokens and never their spelling.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from deepinfer.outputs import TokenLogprob
from deepinfer.recipe.conversation import SpecialTokens
from deepinfer.recipe.parts import Note

THINKING_END = "\ud800"
DSML = "\ud801"
OTHER_CONTROL = "\ud802"


class Tokenizer(Protocol):
    """What reading an answer needs of a tokenizer; deepinfer.tokenizer has one."""

    @property
    def control_ids(self) -> Mapping[str, int]:
        """Spelling to id of each token of the added vocabulary."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; a control token stands for its spelling."""

    def encode(self, text: str, *, add_bos: bool, allow_control: bool) -> list[int]:
        """The ids of a text. allow_control: what is spelled like a control token is one."""


class TokenRun(NamedTuple):
    """Tokens in a row without a control token between them, or one control token.

    text: "" if they show nothing. shown: the spelling of a control token, for which `text` stands.
    logprobs: JSON entries.
    """

    text: str
    num_tokens: int
    shown: str | None = None
    logprobs: Note = ()


class TokenRuns:
    """Decodes. A character whose bytes are not all there waits, and its run with it."""

    def __init__(self, tokenizer: Tokenizer, special_tokens: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._controls = {i: spelling for spelling, i in tokenizer.control_ids.items()}
        self._symbols = {special_tokens.thinking_end: THINKING_END, special_tokens.dsml: DSML}
        # The end token ends an answer; it is no part of one.
        self._symbols[special_tokens.eos] = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._text: list[str] = []
        self._num_tokens = 0
        self._logprobs: list[Mapping[str, Any]] = []

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> list[TokenRun]:
        """The runs that are complete.

        Raises RequestError (field "token_ids") for an id that the model does not have.
        """
        entries = [()] * len(ids) if logprobs is None else [(self._entry(x),) for x in logprobs]
        runs: list[TokenRun] = []
        for token_id, entry in zip(ids, entries, strict=True):
            if (spelling := self._controls.get(token_id)) is not None:
                # What is incomplete now stays so: it becomes U+FFFD.
                self._text.append(self._decoder.decode(b"", final=True))
                runs += self._complete()
                text = self._symbols.get(spelling, OTHER_CONTROL)
                runs.append(TokenRun(text, 1, spelling, entry))
            else:
                self._text.append(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
                self._num_tokens += 1
                self._logprobs += entry
        return runs if self._is_inside_character() else runs + self._complete()

    def finish(self) -> list[TokenRun]:
        """The last run. Half a character at its end is left out; alone, it does not even count."""
        if self._is_inside_character() and not any(self._text):
            return []
        return self._complete()

    def _is_inside_character(self) -> bool:
        return bool(self._decoder.getstate()[0])

    def _complete(self) -> list[TokenRun]:
        if not self._num_tokens:
            return []
        run = TokenRun("".join(self._text), self._num_tokens, logprobs=tuple(self._logprobs))
        self._text, self._num_tokens, self._logprobs = [], 0, []
        return [run]

    def _entry(self, token: TokenLogprob) -> Mapping[str, Any]:
        top = [self._shown(token_id, logprob) for token_id, logprob in token.top]
        return self._shown(token.token_id, token.logprob) | {"top_logprobs": top}

    def _shown(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            text = "".join(f"\\x{byte:02x}" for byte in data)
        return {"token": text, "logprob": logprob, "bytes": list(data)}
