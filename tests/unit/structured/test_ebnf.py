"""Grammars that users write: what they mean, and where they are wrong."""

import random
import re

import pytest

from deepinfer.errors import RequestError
from deepinfer.structured import charset, ebnf
from deepinfer.structured.grammar import EMPTY, Alt, Chars, Expr, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_check import check
from deepinfer.structured.grammar_write import write
from tests.effort import effort
from tests.unit.structured.languages import accepts, strings, words

A, B = Text("a"), Text("b")


def root(text: str) -> Expr:
    return ebnf.read(f"root ::= {text}").rules["root"]


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ('"a"', A),
        ('""', EMPTY),
        ("", EMPTY),
        ('"a" "b" | x-1.y_z', Alt((Seq((A, B)), Ref("x-1.y_z")))),
        ('("a" | ) "b"', Seq((Alt((A, EMPTY)), B))),
        ('"a"*"b"+"a"?', Seq((Repeat(A, 0, None), Repeat(B, 1, None), Repeat(A, 0, 1)))),
        ('"a"{2} "a"{ 2 , } "a"{2,3}', Seq((Repeat(A, 2, 2), Repeat(A, 2, None), Repeat(A, 2, 3)))),
        ('("a"){0,1}*', Repeat(Repeat(A, 0, 1), 0, None)),
        (r'"\"\\\n\r\t\x41\u00e9\U0001F600\0\-\]"', Text('"\\\n\r\tA\u00e9\U0001f600\0-]')),
        ('"\U0001f600#"', Text("\U0001f600#")),
        ("[a-c]", Chars(charset.of("abc"))),
        (r"[\x41-\x43\]\\^-]", Chars(charset.of("ABC]\\^-"))),
        ("[-a]", Chars(charset.of("-a"))),
        ("[^a-c]", Chars(charset.complement(charset.of("abc")))),
        (".", Chars(charset.ALL)),
        ('(\n"a" # one\n |\n\n "b"\r\n)\n"a"', Seq((Alt((A, B)), A))),
    ],
)
def test_each_part_of_the_notation_is_read(text, expr):
    """A grammar that works elsewhere means something else here."""
    assert root(text) == expr


def test_a_rule_ends_where_the_next_one_begins():
    """A rule swallows the name of the next one, or ends at a line break."""
    grammar = ebnf.read("# first\nroot ::= a\n  b\na::=b\r\nb ::=\n  [x]\n| [y]\n\n")
    assert grammar.rules["root"] == Seq((Ref("a"), Ref("b")))
    assert words(grammar, 2) == {"xx", "xy", "yx", "yy"}


@pytest.mark.parametrize(
    ("text", "line", "column", "said"),
    [
        ('root ::= "a', 1, 10, '" is missing'),
        ('root ::= "a\n"', 1, 10, '" is missing'),
        ("root ::= [a", 1, 10, "] is missing"),
        ("root ::= []", 1, 10, "empty"),
        ("root ::= [^]", 1, 10, "empty"),
        ("root ::= [b-a]", 1, 11, "upside down"),
        ('root ::= "x"\na ::= ("y"', 2, 7, "( is never closed"),
        ('root ::= "x")', 1, 13, "never opened"),
        ("root ::= *", 1, 10, "nothing before"),
        ("root ::= (| +)", 1, 13, "nothing before"),
        ('root ::= "a"{3,2}', 1, 13, "at least 3"),
        ('root ::= "a"{,2}', 1, 13, "no count"),
        ('root ::= "a"{9999999999}', 1, 13, "no count"),
        (r'root ::= "\d"', 1, 11, r"no escape \d"),
        (r'root ::= "\x4"', 1, 11, r"no escape \x"),
        (r'root ::= "\ud83d\ude00"', 1, 11, "U+D83D"),
        (r'root ::= "\U00110000"', 1, 11, "U+110000"),
        ('root ::= "\ud800"', 1, 11, "U+D800"),
        ('root ::= "a"\n\nroot ::= "b"', 3, 1, "second time"),
        ('root "a"', 1, 1, "expected a rule, found the name 'root'"),
        ('"a"', 1, 1, "expected a rule"),
        ('root ::= ::= "a"', 1, 10, "expected a part of a rule, found '::='"),
        ("root ::= 'a'", 1, 10, "does not begin anything"),
        ('root ::= (="a") "b"', 1, 10, "look-ahead"),
        ('root ::= TagDispatch(("a", b))', 1, 10, "TagDispatch(...) of xgrammar"),
        ("root ::= Token(5)", 1, 10, "Token(...) of xgrammar"),
    ],
)
def test_mistakes_are_shown_where_they_are(text, line, column, said):
    """An error that names nothing leaves the user to guess among a hundred lines (D19)."""
    with pytest.raises(RequestError) as caught:
        ebnf.read(text, "tools[2]")
    assert caught.value.what.startswith(f"line {line}, column {column}: ")
    assert said in caught.value.what
    assert caught.value.field == "tools[2]"
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "root ::= " + "(" * 100_000,
        "root ::= " + "(" * 31 + '"a"' + ")" * 31,
        'root ::= "a"' + "*" * 50_000,
        'root ::= "a"' + "?" * 101 + " ",
        'root ::= "a" | "' + "b" * 200_000 + '"',
        'root ::= ("ab"{1,2000} | x{1,2097})\nx ::= [ab] [ab]',
        "root ::= [a]{1000001}",
        "root ::= " + "[" * 90_000,
        "root ::= " + "\\" * 90_000,
        "root ::= x\n" + "x ::= y\n" * 20_000,
    ],
    ids=lambda text: text[9:25],
)
def test_hostile_text_is_refused_soon(text):
    """One request stops the server for all others, or ends it with a RecursionError (E08, E10)."""
    with effort(60), pytest.raises(RequestError):
        check(ebnf.read(text))


def test_counts_in_counts_add_up_and_do_not_multiply():
    """A few counts inside each other are written out millions of times (E10)."""
    text = write(ebnf.read('root ::= (((("a" | "bc"){64}){64}){64}){64}'))
    assert len(text) < 5000


def test_random_text_is_read_or_refused():
    """Some text ends in an error that is not the user's to understand."""
    dice = random.Random(3)
    pieces = [
        "root ::= ",
        "x ::= ",
        "\n",
        '"a"',
        "[a-b]",
        "(",
        ")",
        "|",
        "*",
        "{2,3}",
        "x",
        "\\",
        '"',
        "[",
        " ",
        "#",
    ]
    for _ in range(3000):
        text = "".join(dice.choices(pieces, k=dice.randint(1, 12)))
        try:
            check(ebnf.read(text))
        except RequestError as error:
            assert error.what


def test_the_language_is_that_of_the_regular_expression():
    """Repetitions, groups or alternatives bind to the wrong part."""
    dice = random.Random(4)
    for _ in range(40):
        pattern = _pattern(dice, 3)
        notation = re.sub("[ab]", lambda m: f'"{m.group()}" ', pattern)
        text = write(ebnf.read(f"root ::= {notation}"))
        for word in strings("ab", 4):
            assert accepts(text, word) == bool(re.fullmatch(pattern, word)), (pattern, word)


def _pattern(dice: random.Random, depth: int) -> str:
    kind = dice.randrange(6) if depth else 0
    if kind < 2:
        return dice.choice("ab")
    if kind < 4:
        return "".join(_pattern(dice, depth - 1) for _ in range(dice.randint(1, 3)))
    if kind == 4:
        return f"({'|'.join(_pattern(dice, depth - 1) for _ in range(dice.randint(1, 3)))})"
    return f"({_pattern(dice, depth - 1)}){dice.choice(['*', '+', '?', '{2}', '{1,}', '{0,2}'])}"
