"""Which grammars are refused before anything is compiled, and with what words."""

import pytest

from deepinfer.errors import RequestError
from deepinfer.structured.charset import of
from deepinfer.structured.grammar import EMPTY, Alt, Chars, Expr, Grammar, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_check import check
from tests.effort import effort

A = Text("a")


def refused(rules: dict[str, Expr], root: str = "root") -> RequestError:
    with pytest.raises(RequestError) as caught:
        check(Grammar(rules, root), "so_args.schema")
    return caught.value


def test_calls_of_rules_that_are_not_there_are_named():
    """A misspelled rule ends in the compiler's own words, or is taken for text."""
    assert "'itme'" in refused({"root": Seq((A, Ref("itme")))}).what
    assert "'root'" in refused({"item": A}).what


@pytest.mark.parametrize(
    ("rules", "cycle"),
    [
        ({"root": Alt((Seq((Ref("root"), A)), A))}, "root -> root"),
        (
            {"root": Ref("x"), "x": Alt((Seq((Ref("y"), A)), A)), "y": Ref("x")},
            "x -> y -> x",
        ),
        (
            {"root": Ref("x"), "e": Alt((EMPTY, A)), "x": Alt((Seq((Ref("e"), Ref("x"))), A))},
            "x -> x",
        ),
        ({"root": Alt((Seq((Repeat(A, 0, None), Ref("root"))), A))}, "root -> root"),
        ({"root": Alt((Repeat(Ref("root"), 0, 2), A))}, "root -> root"),
    ],
    ids=["direct", "indirect", "behind an empty rule", "behind a repetition", "in a repetition"],
)  # fmt: skip
def test_left_recursion_is_refused_with_its_cycle(rules, cycle):
    """Left recursion hangs or crashes the server (D17)."""
    assert refused(rules).what.endswith(f"(left recursion): {cycle}")


@pytest.mark.parametrize(
    "rule",
    [
        Repeat(Alt((EMPTY, A)), 0, None),
        Repeat(Repeat(A, 0, None), 0, None),
        Repeat(Repeat(A, 0, 1), 1, None),
        Alt((Seq((A, Ref("root"))), EMPTY)),
        Seq((Repeat(EMPTY, 0, None), A, Repeat(Ref("root"), 0, 1))),
    ],
)
def test_a_repetition_of_what_may_be_empty_is_no_left_recursion(rule):
    """A legal grammar is refused, or aborts the process, for a star over an option (D18)."""
    check(Grammar({"root": rule}, "root"))


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ({"root": Ref("root")}, "root"),
        ({"root": Alt((A, Ref("x"))), "x": Seq((A, Ref("y"))), "y": Ref("x")}, "x"),
        ({"root": Alt((A, Ref("x"))), "x": Chars(())}, "x"),
        ({"root": Seq((A, Ref("x"))), "x": Alt(())}, "root"),
    ],
)
def test_rules_without_a_finite_word_are_named(rules, name):
    """A model that enters a rule that never ends writes to its token limit."""
    assert f"rule '{name}'" in refused(rules).what


def test_a_grammar_without_any_text_says_so():
    """An unsatisfiable schema compiles into nothing, and the answer is empty (D02)."""
    assert refused({"root": Alt(())}).what == "no text at all fits rule 'root'"


def test_rules_that_nobody_calls_do_not_matter():
    """A leftover rule refuses a grammar that is fine without it."""
    check(Grammar({"root": A, "spare": Ref("nowhere"), "loop": Ref("loop")}, "root"))


@pytest.mark.parametrize(
    "rules",
    [
        {"root": Repeat(Alt((A, Text("bb"))), 0, 20_001)},
        {"root": Repeat(Chars(of("ab")), 0, 1_000_001)},
        {"root": Text("x" * 500_001)},
        {f"r{i}": Seq((A, Ref(f"r{i + 1}"))) for i in range(20_001)} | {"r20001": A},
        {"root": Alt((A,) * 500_001)},
    ],
    ids=["copies", "count", "letters", "rules", "parts"],
)
def test_too_large_grammars_are_refused_within_a_second(rules):
    """One request takes the memory and the time of all others (E10)."""
    with effort(60):
        refused(rules, next(iter(rules)))


@pytest.mark.parametrize("wrap", [lambda e: Seq((e, e)), lambda e: Alt((e,))])
def test_depth_is_refused_and_not_run_into(wrap):
    """A deeply nested grammar ends in a RecursionError, or in hours of walking shared parts."""
    expr: Expr = A
    for _ in range(5000):
        expr = wrap(expr)
    assert "rule 'root'" in refused({"root": expr}).what


def test_long_chains_of_rules_are_walked_in_a_straight_line():
    """The check takes quadratic time, or Python's stack, for rules that lead to each other."""
    last = 19_000
    rules: dict[str, Expr] = {f"r{i}": Alt((Ref(f"r{i + 1}"), A)) for i in range(last)}
    with effort(600):  # a square of it would be hours
        check(Grammar(rules | {f"r{last}": EMPTY}, "r0"))
        check(Grammar({"root": Alt(tuple(rules.values())), **rules, f"r{last}": A}, "root"))
