"""Reads a growing answer: content, reasoning, tool calls and the end (spec recipe 7).

Knows what the parts of an answer mean. Does not know protocols, or where the answer comes from.
"""

import json
from collections.abc import Iterable, Sequence

from deepinfer.outputs import TokenLogprob
from deepinfer.recipe.call_ids import CallIds, random_call_id
from deepinfer.recipe.chunks import EndReason
from deepinfer.recipe.events import (
    AnswerEnd,
    CallArguments,
    CallOpened,
    ContentText,
    Event,
    Finished,
    ReasoningText,
    Unread,
)
from deepinfer.recipe.machine import Machine
from deepinfer.recipe.parts import Part
from deepinfer.recipe.request import ParsingOptions
from deepinfer.recipe.stages import Action, Stages, build_stages, first_stage
from deepinfer.recipe.token_runs import DSML, THINKING_END, Tokenizer, TokenRun, TokenRuns

_ENDS: dict[EndReason, AnswerEnd] = {"Length": "length", "ContentFilter": "content_filter"}


class OutputParser:
    """Push text or tokens as they come, then call `finish`; each returns what is certain now.

    A stop sequence ends the answer inside a push, whose last event is then Finished; whatever is
    pushed afterwards is ignored. It acts in content alone: not in reasoning, nor in a call.

    tokenizer: needed for `push_tokens`, and to count the tokens of the reasoning. An answer that
    comes partly as text and partly as tokens is read too, but no markup reaches from one to the
    other. call_id: makes the id of a call.

    Attributes: `finished`; `num_tokens`, the tokens of all that was pushed until the end.

    Never in an answer are the newlines in front, those around the end of the reasoning and before
    a block of calls, the text after such a block, and the end token. Arguments are passed on as
    they grow, and nothing in them is repaired: `string="true"` makes a JSON string of a value,
    anything else is passed on as it stands. Reasoning that nothing ends is reasoning to its end,
    unless a block of calls begins in it.
    """

    def __init__(
        self,
        parsing: ParsingOptions,
        tokenizer: Tokenizer | None = None,
        *,
        call_id: CallIds = random_call_id,
    ) -> None:
        spellings = parsing.special_tokens
        self._parsing = parsing
        self._tokenizer = tokenizer
        self._call_id = call_id
        self._of_text = build_stages(parsing, spellings.thinking_end, spellings.dsml)
        self._of_tokens = build_stages(parsing, THINKING_END, DSML)
        self._stages = self._of_text if tokenizer is None else self._of_tokens
        self._machine = Machine(self._stages, first_stage(parsing))
        self._runs = None if tokenizer is None else TokenRuns(tokenizer, spellings)
        self._reasoning: list[str] = []
        self._name: list[str] = []
        self._num_calls = 0
        # None: something was read, and nothing is missing from the answer.
        self._unread: list[str] | None = []
        self.num_tokens = 0
        self.finished = False

    def push(self, text: str, num_tokens: int = 0) -> list[Event]:
        """More text. Control tokens spelled in it are control tokens.

        num_tokens: how many tokens it counts for.
        """
        if self.finished:
            return []
        self.num_tokens += num_tokens
        return self._events([*self._switch(self._of_text), *self._machine.push(text)])

    def push_tokens(
        self, ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> list[Event]:
        """More tokens. Control tokens are such by their ids alone.

        logprobs: one for each id. They go with the first text of their run of tokens. Raises
        RequestError (field "token_ids") for an id that the model does not have, and ValueError
        without a tokenizer.
        """
        if self._runs is None:
            raise ValueError("tokens cannot be read without a tokenizer")
        return self._read_runs(self._runs.push(ids, logprobs))

    def finish(self, reason: EndReason = "Stop") -> list[Event]:
        """The end, and what was held back until it; nothing if the answer has ended already."""
        if self.finished:
            return []
        events = self._read_runs(self._runs.finish()) if self._runs else []
        if not self.finished:
            events += self._events(self._machine.finish())
            calls_end: AnswerEnd = "tool_calls" if self._num_calls else "stop"
            events += self._end(_ENDS.get(reason, calls_end))
        return events

    def count_reasoning(self) -> int | None:
        """Tokens of the reasoning so far; None without a tokenizer or without thinking."""
        if self._tokenizer is None or self._parsing.thinking_stage is None:
            return None
        text = "".join(self._reasoning)
        return len(self._tokenizer.encode(text, add_bos=False, allow_control=True))

    def _switch(self, stages: Stages) -> list[Part]:
        if stages is self._stages:
            return []
        self._stages = stages
        return self._machine.switch(stages)

    def _read_runs(self, runs: Iterable[TokenRun]) -> list[Event]:
        events: list[Event] = []
        for run in runs:
            if self.finished:
                break
            self.num_tokens += run.num_tokens
            if run.text:
                parts = self._switch(self._of_tokens)
                parts += self._machine.push(run.text, shown=run.shown, note=run.logprobs)
                events += self._events(parts)
        return events

    def _events(self, parts: Iterable[Part]) -> list[Event]:
        events: list[Event] = []
        for part in parts:
            if part.action is Action.STOP:
                return events + self._end("stop", part.text)
            events += self._event(part)
        return events

    def _event(self, part: Part) -> list[Event]:
        action, text, note = part
        self._watch(action, text)
        if action is Action.CONTENT or action is Action.BLANK:
            return [ContentText(" " if action is Action.BLANK else text, note)]
        if action is Action.REASONING:
            self._reasoning.append(text)
            return [ReasoningText(text, note)]
        if action is Action.NAME:
            self._name.append(text)
        if action is Action.CALL:
            return [self._open_call()]
        if action is Action.ARGUMENTS:
            return [CallArguments(self._num_calls - 1, text)]
        if action is Action.STRING:
            # Without the quotes: the parts before and after this one have them.
            return [CallArguments(self._num_calls - 1, json.dumps(text, ensure_ascii=False)[1:-1])]
        return []

    def _open_call(self) -> CallOpened:
        index, name = self._num_calls, "".join(self._name)
        self._num_calls += 1
        self._name.clear()
        thinks = self._parsing.thinking_stage is not None
        without_reasoning = thinks and not any(self._reasoning)
        return CallOpened(index, self._call_id(index, without_reasoning), name)

    def _watch(self, action: Action, text: str) -> None:
        """Keep what would vanish, until a call is read, or JSON where only JSON is expected."""
        is_json = action is Action.CONTENT and self._parsing.parse_json_output
        if action is Action.CALL or is_json:
            self._unread = None
        elif self._unread is not None and action in (Action.BLANK, Action.MARKUP, Action.NAME):
            self._unread.append(text)

    def _end(self, reason: AnswerEnd, stop_sequence: str | None = None) -> list[Event]:
        self.finished = True
        unread = "".join(self._unread or ())
        unread = unread.replace(DSML, self._parsing.special_tokens.dsml)
        finished = Finished(reason, stop_sequence)
        return [Unread(unread), finished] if unread else [finished]
