"""Mistakes that other engines made with grammars and control tokens, by their number."""

import json
import random
import re
from itertools import product
from typing import Any

import pytest

from deepinfer.structured import ebnf
from deepinfer.structured.control_chars import DSML, plain
from deepinfer.structured.grammar import Grammar
from deepinfer.structured.grammar_write import write
from deepinfer.structured.schema import schema_grammar
from deepinfer.structured.tool_grammar import tool_grammar
from tests.effort import effort
from tests.unit.structured.judge import (
    CONTROL,
    FIRST_CONTROL,
    STOP,
    VOCAB,
    Judge,
    Reader,
    control_id,
    mask,
    refused,
    tool,
    written,
)
from tests.unit.structured.schema_cases import obj

_WORDS = {"type": "array", "items": {"type": "string"}}
_TOOLS = [
    tool("find", obj(["text"], text={"type": "string"}, words=_WORDS, n={"type": "integer"})),
    tool("say", obj([], short={"type": "string", "maxLength": 3}, kind={"enum": ["a", 'b"', 3]})),
    tool("end", {"type": "object"}),
]
_SCHEMAS: dict[str, Any] = {
    "anything": {},
    "strings": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 3},
    "objects": {"type": "array", "minItems": 2, "items": obj(["a"], a={}, b={"type": "integer"})},
    "keys": {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    "pattern": {"type": "array", "items": {"pattern": "^[^a]b$", "type": "string"}, "minItems": 1},
}
_EBNF = {
    "class": 'root ::= "[" [^\\]]* "]" | "</think>" .*',
    "lists": 'root ::= "[" (item ("," item)*)? "]"\nitem ::= root | [0-9]{1,3} | q [a-z]* q\n'
    'q ::= ["]',
    "spelled": 'root ::= ("<｜DSML｜" | "</think>" | "｜" [^<]){1,9} "日本"',
}


def grammars() -> dict[str, Grammar]:
    found = {name: plain(schema_grammar(schema)) for name, schema in _SCHEMAS.items()}
    found |= {name: plain(ebnf.read(text)) for name, text in _EBNF.items()}
    for is_open in (False, True):
        tools = json.dumps(_TOOLS)
        found[f"tools, open: {is_open}"] = tool_grammar(tools, "tools", is_open=is_open)
    return found


@pytest.mark.parametrize("name", grammars())
def test_d16_mask_is_what_brute_force_finds(judge: Judge, name: str) -> None:
    """D16: a long token slips past the end of a string, or a control token is text.

    At each step of random walks, every token of the vocabulary is judged by a reader of our own.
    """
    grammar = grammars()[name]
    reader, text = Reader(grammar), write(grammar)
    num_steps = 0
    for seed in range(8):
        dice = random.Random(seed)
        matcher, ways, half = judge.matcher(text), reader.start, b""
        for _ in range(30):
            allowed = mask(matcher)
            assert allowed == reader.tokens(ways, half)
            going_on = sorted(allowed - {STOP}, key=lambda one: (-len(VOCAB[one]), one))
            if not going_on:
                break
            num_steps += 1
            # Often a long token or a control token, else one of all.
            chosen = dice.choice(going_on[: dice.choice([3, 12, 400])])
            assert matcher.accept_token(chosen)
            ways, half = reader.read(ways, half + VOCAB[chosen])
    assert num_steps > 50


def test_d16_control_tokens_come_where_the_grammar_means_them(judge: Judge) -> None:
    """D16: a control token is taken for the text of its spelling, or that text for the token."""
    dsml = control_id("｜DSML｜")
    matcher = judge.matcher(written(json.dumps(_TOOLS), "tool_calls"))
    assert matcher.accept_string("\n\n<")
    assert mask(matcher) == {dsml}
    assert not matcher.accept_string("｜DSML｜")
    assert matcher.accept_token(dsml)
    assert matcher.accept_string(" calls>\n<")
    assert matcher.accept_token(dsml)
    assert matcher.accept_string(' invoke name="find">\n<')
    assert matcher.accept_token(dsml)
    assert matcher.accept_string(' parameter name="text" string="true">a "b" </think> ｜DSML｜ <')
    inside = mask(matcher)
    assert not inside & set(range(FIRST_CONTROL, STOP + 1))
    assert VOCAB.index("｜DSML｜".encode()) in inside
    assert matcher.accept_string("/")
    assert mask(matcher) & set(range(FIRST_CONTROL, STOP + 1)) == {dsml}
    assert matcher.accept_token(dsml)  # which can only close the argument
    assert {VOCAB[one] for one in mask(matcher)} <= {b" ", b" parameter"}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", '{"type":"string"}'),
        ("json", "{}"),
        ("json", '{"enum":["</think>","｜DSML｜"]}'),
        ("json", '{"type":"string","pattern":"^[^a]*$"}'),
        ("regex", "(.|\\n)*"),
        ("regex", "[^a]*"),
        ("regex", f"(a|{DSML}|</think>)*"),
        ("ebnf", "root ::= .*"),
        ("ebnf", f'root ::= ("{DSML}" | [{DSML}-\U0010ffff] | "</think>" | [a-z])*'),
        ("ebnf", "root ::= ([\\U00100000-\\U0010ffff] | [^b])*"),
    ],
)
def test_d16_no_control_token_is_text(judge: Judge, kind: Any, text: str) -> None:
    """D16: a user's grammar lets a control token in, by its spelling or what stands for it."""
    ebnf_text = written(text, kind)
    spelled = ["", '"', '"</', '"</think>', '"<｜DSML｜', "</think>", "cd"]
    for beginning in spelled:
        matcher = judge.matcher(ebnf_text)
        if matcher.accept_string(beginning):
            assert not mask(matcher) & set(range(FIRST_CONTROL, STOP))
            assert not any(matcher.fork().accept_token(control_id(one)) for one in CONTROL[:-1])


_LEFT = {
    "direct": ('root ::= root "a" | "a"', ["root"]),
    "direct, inside": ('root ::= "b" x\nx ::= x "a" | "a"', ["x"]),
    "indirect": ('root ::= x\nx ::= y "a" | "b"\ny ::= z\nz ::= x | "c"', ["x", "y", "z"]),
    "behind an empty rule": ('root ::= e root "a" | "b"\ne ::= "" | "c"', ["root"]),
    "behind an empty star": ('root ::= "x"* root "a" | "b"', ["root"]),
    "behind empty rules": ('root ::= e f x\nx ::= e f x | "x"\ne ::= f\nf ::= "f"?', ["x"]),
    "in a star": ('root ::= (root "a")* "b"', ["root"]),
}  # fmt: skip
_NO_WORDS = {
    "only itself": ("root ::= root", "root"),
    "only each other": ('root ::= "a" | x\nx ::= "b" y\ny ::= "c" x', "x"),
    "never ends": ('root ::= "a" root', "root"),
    "not defined": ('root ::= "a" missing', "missing"),
    "not defined, inside": ('root ::= "a" x?\nx ::= ("b" | nothing-here)*', "nothing-here"),
    "no root": ('main ::= "a"', "root"),
}


@pytest.mark.parametrize(("text", "names"), _LEFT.values(), ids=_LEFT)
def test_d17_left_recursion(text: str, names: list[str]) -> None:
    """D17: left recursion hangs or crashes the compiler."""
    with effort(60):
        error = refused(text, "ebnf")
    assert "left recursion" in error.what
    assert any(f"rule {name!r}" in error.what for name in names)


@pytest.mark.parametrize(("text", "name"), _NO_WORDS.values(), ids=_NO_WORDS)
def test_d17_rules_without_sense(text: str, name: str) -> None:
    """D17: a rule that is not defined, or only calls itself, crashes the compiler."""
    with effort(60):
        error = refused(text, "ebnf")
    assert repr(name) in error.what
    assert error.field == "so_args.schema"


def test_d17_rules_that_are_not_reached(judge: Judge) -> None:
    """D17: a rule that nobody calls is an error, or crashes the compiler."""
    text = written('root ::= "a"+\nspare ::= "b"\nloop ::= loop\nlost ::= nowhere', "ebnf")
    assert judge.accepted(text, ["a", "aa", "b", ""]) == ["a", "aa"]


def test_d17_right_recursion_is_fine(judge: Judge) -> None:
    """D17: recursion that reads something first is refused with the rest."""
    text = written('root ::= "(" root ")" | e "a" root | e\ne ::= ""', "ebnf")
    words = ["", "a", "()", "(a)", "((aa))a", "(()a)", "(", ")", "a()", "a(a"]
    expected = [one for one in words if re.fullmatch(r"a*(\(a*(\(a*\))?\))?", one)]
    assert judge.accepted(text, words) == expected


# The grammar's root, and the same as a regular expression.
_STARS = [
    ('("a" | "")*', "a*"),
    ('("a" | )*', "a*"),
    ('("a" | "")+ "b"', "a*b"),
    ('("a"?)* "b"', "a*b"),
    ('(("a"*)*)*', "a*"),
    ('("a"* "b"*)*', "[ab]*"),
    ('(("a" | "")* "b")*', "(a*b)*"),
    ('(("a"?)+ | "b")*', "[ab]*"),
    ('((""))* "a"', "a"),
    ('(""* | "b"){2,3}', "b{0,3}"),
    ('("a"? "b"?){2}', "(a?b?){2}"),
    ('("a"? | "bb"){1,2} "c"', "(a|bb){0,2}c"),
    ("x* y", "a*b*"),
    ("(x y)* | y+", "[ab]*"),
]


@pytest.mark.parametrize(("root", "pattern"), _STARS)
def test_d18_repetitions_of_what_may_be_empty(judge: Judge, root: str, pattern: str) -> None:
    """D18: an empty alternative under a star aborts the process, or changes the language."""
    with effort(60):
        text = written(f'root ::= {root}\nx ::= "a" | ""\ny ::= "b"*', "ebnf")
        words = ["".join(one) for length in range(6) for one in product("abc", repeat=length)]
        assert judge.accepted(text, words) == [one for one in words if re.fullmatch(pattern, one)]


@pytest.mark.parametrize(
    "pattern", ["(a|)*", "(a?)*b", "((a*)*)*", "(a*b*)*", "(|a|b)+c", "(()*a)*"]
)
def test_d18_in_regular_expressions(judge: Judge, pattern: str) -> None:
    """D18: the same, where a regular expression says it."""
    words = ["".join(one) for length in range(5) for one in product("abc", repeat=length)]
    accepted = judge.accepted(written(pattern, "regex"), words)
    assert accepted == [one for one in words if re.fullmatch(pattern, one)]
