"""Control tokens in a grammar: each is a private character that no text can spell.

A grammar is over characters, a control token is none. So plane 16 of Unicode, which is for private
use and holds no writing, stands for control tokens: the compiler is told that a control token's
text is such a character, that no other token has one in it, and no schema or grammar of a user may
mean one. A spelling such as "</think>" inside a string stays plain characters.
"""

from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet
from deepinfer.structured.grammar import Alt, Chars, Expr, Grammar, Repeat, Seq, Text

_PLANE = charset.char_range(0x100000, 0x10FFFF)
# The first byte of UTF-8 of the whole plane, and of nothing else.
_LEAD_BYTE = 0xF4
DSML = chr(0x10F000)
# The control tokens that a grammar can ask for.
_CHARS = {"｜DSML｜": DSML}


def token_text(spelling: str | None, text: bytes) -> bytes:
    """The bytes of a token as the compiler is to see them; none for a token that may never come.

    spelling: of a control token, None for any other.
    """
    if spelling is not None:
        return _CHARS.get(spelling, "").encode()
    return b"" if _LEAD_BYTE in text else text


def plain(grammar: Grammar) -> Grammar:
    """The same grammar without characters that stand for control tokens."""
    return Grammar({name: _plain(rule) for name, rule in grammar.rules.items()}, grammar.root)


def plain_chars(chars: CharSet) -> Expr:
    """One character of the set that stands for no control token."""
    return Chars(charset.subtract(chars, _PLANE))


def _plain(expr: Expr) -> Expr:
    if isinstance(expr, Chars):
        return plain_chars(expr.chars)
    if isinstance(expr, Text):
        is_private = any(charset.contains(_PLANE, ord(character)) for character in expr.text)
        return Alt(()) if is_private else expr
    if isinstance(expr, Seq | Alt):
        return type(expr)(tuple(_plain(part) for part in expr.parts))
    if isinstance(expr, Repeat):
        return Repeat(_plain(expr.part), expr.low, expr.high)
    return expr
