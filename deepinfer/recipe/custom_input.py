"""The input of a custom tool, taken out of the JSON of its call's arguments as they grow.

Knows JSON's string escapes. Does not know tools or protocols.
"""

import json
import re

_PREFIX = '{"input": "'
_PIECE = re.compile(
    r"""(?P<plain>[^"\\]+)
    |(?P<quote>")
    # The end of the text so far, where an escape, or the second half of a pair, may go on.
    |(?P<partial>\\(?:u(?:[0-9a-fA-F]{0,3}
        |[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?))?\Z)
    |(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})
    |(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})
    |(?P<escape>\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))
    |(?P<other>\\)""",
    re.VERBOSE,
)


class CustomInput:
    """The text of the one argument `input`; what each call returns, joined, is the text.

    Arguments that do not begin with such a string are passed on as they stand. After the string's
    end all is dropped. An escape that means nothing stands for itself.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_string: bool | None = None
        self._ended = False

    def push(self, arguments: str) -> str:
        """The text that is certain now."""
        text = self._held + arguments
        self._held = ""
        if self._is_string is None:
            if len(text) < len(_PREFIX) and _PREFIX.startswith(text):
                self._held = text
                return ""
            self._is_string = text.startswith(_PREFIX)
            text = text.removeprefix(_PREFIX)
        return self._unescape(text) if self._is_string else text

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held

    def _unescape(self, text: str) -> str:
        pieces: list[str] = []
        for match in _PIECE.finditer(text):
            if match["quote"]:
                self._ended = True
            if self._ended:
                break
            if match["partial"]:
                self._held = match[0]
            elif match["pair"] or match["escape"]:
                pieces.append(json.loads(f'"{match[0]}"'))
            else:
                pieces.append(match[0])
        return "".join(pieces)
