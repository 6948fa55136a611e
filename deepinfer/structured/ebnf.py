r"""Reads grammars that users write, in the notation of llama.cpp (GBNF), which xgrammar reads too.

Knows the notation. Does not know whether the grammar makes sense: that is grammar_check.py.

    root ::= "[" item ("," item)* "]"       # a comment
    item ::= [a-z0-9]{1,8} | "\"" [^"\\]* "\"" | .

The answer is what the rule `root` says. A rule goes on until the next one begins; line breaks mean
nothing. `.` is any character. An alternative may be empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from deepinfer.structured import charset
from deepinfer.structured.ebnf_tokens import Source, Token, tokens
from deepinfer.structured.grammar import EMPTY, Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_check import MAX_DEPTH
from deepinfer.structured.grammar_facts import deeper_than, one_character

# Parentheses in parentheses.
MAX_NESTING = 30
# Counted repetition of anything but one character, all counts of the grammar added up.
MAX_COPIES = 4096

_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
# What xgrammar has beyond this notation.
_MACROS = ("TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken", "Regex")


def read(text: str, field: str = "so_args.schema") -> Grammar:
    """The grammar that `text` describes; its root is `root`.

    Raises RequestError, with line and column, for text that is not in this notation, for a rule
    that is defined twice, and for more than the limits of this module. field: the request's field
    that the text comes from.
    """
    source = Source(text, field)
    words = _Words(source)
    rules: dict[str, Expr] = {}
    num_copies = 0
    while words.now.kind != "end":
        name = words.now
        if name.kind != "name" or words.following.kind != "::=":
            hint = 'a rule looks like: name ::= "text" other-name'
            raise source.mistake(name.start, f"expected a rule, found {_shown(name)}", hint)
        if name.value in rules:
            what = f"rule {name.value!r} is defined a second time"
            raise source.mistake(name.start, what, "join its alternatives with |")
        words.advance()
        words.advance()
        rules[name.value], copies = _rule_body(words)
        num_copies += copies
        if deeper_than(rules[name.value], MAX_DEPTH):
            what = f"rule {name.value!r} is nested deeper than {MAX_DEPTH}"
            raise source.mistake(name.start, what, "a repetition needs no second * or + behind it")
        if num_copies > MAX_COPIES:
            what = f"with rule {name.value!r}, counted repetitions exceed {MAX_COPIES} in all"
            hint = "use smaller counts, * or +; only single characters may be counted far"
            raise source.mistake(name.start, what, hint)
    return Grammar(rules, "root")


class _Words:
    """The words of the text, the present one and the one after it."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._rest: Iterator[Token] = tokens(source)
        self.now = next(self._rest)
        self.following = next(self._rest, self.now)

    def advance(self) -> None:
        self.now, self.following = self.following, next(self._rest, self.following)

    def begins_rule(self) -> bool:
        """Whether a rule begins here, or nothing more comes."""
        is_name = self.now.kind == "name" and self.following.kind == "::="
        return is_name or self.now.kind == "end"


@dataclass
class _Group:
    """What has been read since an opening parenthesis."""

    start: int
    ways: list[Expr] = field(default_factory=list)
    parts: list[Expr] = field(default_factory=list)

    def end_way(self) -> None:
        self.ways.append(_one_or(Seq, self.parts))
        self.parts = []

    def closed(self) -> Expr:
        self.end_way()
        return _one_or(Alt, self.ways)


def _one_or(kind: type[Seq] | type[Alt], parts: list[Expr]) -> Expr:
    return parts[0] if len(parts) == 1 else kind(tuple(parts))


def _rule_body(words: _Words) -> tuple[Expr, int]:
    """(what follows ::=, counts of what is not one character). Stands then at the next rule."""
    source = words.source
    open_groups = [_Group(words.now.start)]
    num_copies = 0
    while not words.begins_rule():
        token = words.now
        group = open_groups[-1]
        if token.kind == "(":
            if len(open_groups) > MAX_NESTING:
                what = f"parentheses are nested deeper than {MAX_NESTING}"
                raise source.mistake(token.start, what, "give the inner part a rule of its own")
            open_groups.append(_Group(token.start))
        elif token.kind == ")":
            if len(open_groups) == 1:
                raise source.mistake(token.start, "this ) was never opened", "take it away")
            open_groups.pop()
            open_groups[-1].parts.append(group.closed())
        elif token.kind == "|":
            group.end_way()
        elif token.kind in _COUNTS or token.kind == "count":
            repeat = _repeated(source, group, token)
            num_copies += 0 if one_character(repeat.part) else max(repeat.low, repeat.high or 0)
        else:
            group.parts.append(_element(words))
        words.advance()
    if len(open_groups) > 1:
        start = open_groups[-1].start
        raise source.mistake(start, "this ( is never closed", "put ) before the next rule")
    return open_groups[0].closed(), num_copies


def _repeated(source: Source, group: _Group, token: Token) -> Repeat:
    """The group's last part, which becomes a repetition of itself."""
    if not group.parts:
        what = f"{_shown(token)} has nothing before it to repeat"
        raise source.mistake(token.start, what, 'put it behind a name, "text", [class] or group')
    low, high = _COUNTS.get(token.kind, (token.low, token.high))
    if high is not None and high < low:
        what = f"at least {low} times and at most {high} times cannot be"
        raise source.mistake(token.start, what, "put the smaller count first")
    repeat = Repeat(group.parts[-1], low, high)
    group.parts[-1] = repeat
    return repeat


def _element(words: _Words) -> Expr:
    token = words.now
    if token.kind == "text":
        return Text(token.value) if token.value else EMPTY
    if token.kind == "class":
        return Chars(token.chars)
    if token.kind == ".":
        return Chars(charset.ALL)
    if token.kind == "name":
        if token.value in _MACROS and words.following.kind == "(":
            what = f"{token.value}(...) of xgrammar is not supported"
            raise words.source.mistake(token.start, what, "use rules, text and classes")
        return Ref(token.value)
    what = f"expected a part of a rule, found {_shown(token)}"
    raise words.source.mistake(token.start, what, "the name of the rule must come before ::=")


def _shown(token: Token) -> str:
    return f"the name {token.value!r}" if token.kind == "name" else f"{token.kind!r}"
