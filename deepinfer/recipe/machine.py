"""Cuts a growing answer into parts, each with the action that its stage gives it (spec recipe 7).

Knows stages. Does not know what the parts mean, tokens, or any protocol.

The parts do not depend on how the text was cut into chunks, except that none reaches over the end
of a chunk. Text that may be the beginning of a pattern is held back, and with it the rest of its
own chunk that it may go on.
"""

import re

from deepinfer.recipe.matcher import Matcher
from deepinfer.recipe.parts import Note, Part, PartQueue
from deepinfer.recipe.stages import Action, StageName, Stages


class Machine:
    """Reads an answer. Each call returns the parts that are certain now."""

    def __init__(self, stages: Stages, start: StageName) -> None:
        self._stages = stages
        # Made when a stage is entered for the first time.
        self._tools: dict[StageName, tuple[list[Matcher], re.Pattern[str]]] = {}
        self._queue = PartQueue()
        # Characters since the last decision, and those at their end that may begin a match.
        self._num_undecided = 0
        self._num_held = 0
        # Nothing has come in a stage that skips newlines in front.
        self._at_start = False
        self._enter(start)

    def push(self, text: str, *, shown: str | None = None, note: Note = ()) -> list[Part]:
        """One chunk. shown: how a control token is spelled for which `text` stands.

        An empty chunk is an empty part, of what the text before it is.
        """
        self._queue.add(text, shown, note)
        position = 0
        while (found := self._find(text, position)) is not None:
            matcher, end = found
            self._num_undecided += end - position
            position = end
            self._leave(matcher)
        self._num_undecided += len(text) - position
        self._queue.decide(self._num_undecided - self._num_held, self._stage.action)
        self._num_undecided = self._num_held
        return self._queue.take()

    def finish(self) -> list[Part]:
        """What was held back: nothing follows that could make a match of it."""
        self._queue.decide(self._num_undecided, self._stage.action)
        self._num_undecided = 0
        return self._queue.take()

    def switch(self, stages: Stages) -> list[Part]:
        """Go on with other patterns. No match reaches from before the switch to after it."""
        parts, at_start = self.finish(), self._at_start
        self._stages = stages
        self._tools.clear()
        self._enter(self._name)
        self._at_start = at_start
        return parts

    def _enter(self, name: StageName) -> None:
        self._name, self._stage = name, self._stages[name]
        if name not in self._tools:
            matchers = [Matcher(pattern) for pattern in self._stage.patterns]
            self._tools[name] = matchers, _beginning(matchers)
        self._matchers, self._beginning = self._tools[name]
        for matcher in self._matchers:
            matcher.reset()
        self._num_held = 0
        self._at_start = self._stage.skips_newlines

    def _find(self, text: str, position: int) -> tuple[Matcher | None, int] | None:
        """The next match from `position` on and where it ends, or None if `text` ends first.

        In place of a matcher, None is a newline in front that the stage skips.
        """
        while position < len(text):
            if not (self._num_held or self._at_start):
                # Nothing has begun: go to the next character that begins a pattern.
                found = self._beginning.search(text, position)
                if found is None:
                    return None
                position = found.start()
            character = text[position]
            position += 1
            for matcher in self._matchers:
                if matcher.advance(character):
                    return matcher, position
            if self._at_start and character == "\n":
                return None, position
            self._at_start = False
            self._num_held = max((matcher.num_held for matcher in self._matchers), default=0)
        return None

    def _leave(self, matcher: Matcher | None) -> None:
        """Decide on a match and the text before it, and enter the next stage."""
        if matcher is None:
            self._queue.decide_match(1, Action.SKIP, "")
            self._num_undecided = 0
            self._enter(self._name)
            return
        pattern, length = matcher.pattern, matcher.num_held
        self._queue.decide(self._num_undecided - length, self._stage.action)
        self._num_undecided = 0
        newlines = "\n" * (length - len(pattern.text))
        says = newlines + pattern.text if pattern.says is None else pattern.says
        self._queue.decide_match(length, pattern.action, says)
        self._enter(pattern.next)


def _beginning(matchers: list[Matcher]) -> re.Pattern[str]:
    """Finds a character with which a match may begin."""
    characters = {matcher.pattern.text[0] for matcher in matchers}
    if any(matcher.pattern.takes_newlines for matcher in matchers):
        characters.add("\n")
    # (?!) is never found.
    return re.compile("|".join(map(re.escape, sorted(characters))) or "(?!)")
