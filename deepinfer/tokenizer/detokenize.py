"""Token ids to text one at a time, never half a character.

Knows bytes and UTF-8. Does not know stop strings, control markup, or who reads the text.
"""

import codecs

from deepinfer.tokenizer.tokenizer import Tokenizer

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one growing answer.

    What the calls of `push` and the last `finish` return, joined, equals `Tokenizer.decode` of all
    ids. Bytes that are not UTF-8 become U+FFFD when no further byte can complete them, never before
    (the start of a surrogate, ED A0 to ED BF, one byte after: the codec waits for it).

    Example, with "é" cut into its bytes C3 and A9: push(C3) -> "", push(A9) -> "é", finish() -> "".
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = _new_utf8_decoder(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that is final now; it may be empty.

        Raises RequestError (field "token_ids") for an id that the model does not have.
        """
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What was held back: U+FFFD if the answer ended inside a character, else nothing.

        Afterwards the object is as new.
        """
        return self._utf8.decode(b"", final=True)
