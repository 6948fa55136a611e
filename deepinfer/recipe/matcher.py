"""Follows a text character by character and finds where one pattern ends in it (spec recipe 7.2).

Knows one pattern. Does not know stages or chunks.
"""

from deepinfer.recipe.stages import Pattern


class Matcher:
    """A pattern and how much of it the text ends with (Knuth, Morris and Pratt).

    Attributes: `num_held`, the characters at the end of the text that may be the beginning of a
    match, the newlines that the pattern takes along included.
    """

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.num_held = 0
        self._num_matched = 0
        # For each beginning of the pattern: its longest end, short of all of it, that is one too.
        self._shorter = [0]
        for character in pattern.text[1:]:
            self._shorter.append(self._extend(self._shorter[-1], character))

    def reset(self) -> None:
        """Forget the text."""
        self.num_held = self._num_matched = 0

    def advance(self, character: str) -> bool:
        """Whether the text, now with `character` at its end, ends with a match.

        After a match, whose length is `num_held`, call `reset`.
        """
        before = self._num_matched
        if not before and character == "\n" and self.pattern.takes_newlines:
            self.num_held += 1
            return False
        matched = self._num_matched = self._extend(before, character)
        # A step that does not lengthen the match loses the newlines before it. The newline that
        # breaks a match is itself lost for the next one: so does the released recipe.
        self.num_held = self.num_held + 1 if matched > before else matched
        return matched == len(self.pattern.text)

    def _extend(self, length: int, character: str) -> int:
        """The beginning that is matched after one more character."""
        text = self.pattern.text
        while length and text[length] != character:
            length = self._shorter[length - 1]
        return length + (text[length] == character)
