"""Shapes -> the rules of a grammar of JSON text.

Every value is a rule named by its number. Knows how JSON is spelled; decides nothing about what is
allowed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deepinfer.structured import automaton, charset
from deepinfer.structured.automaton import Dfa
from deepinfer.structured.charset import CharSet
from deepinfer.structured.document import SchemaSet
from deepinfer.structured.grammar import EMPTY, Alt, Chars, Expr, Ref, Repeat, Seq, Text
from deepinfer.structured.grammar_check import MAX_RULES
from deepinfer.structured.grammar_write import dfa_rules
from deepinfer.structured.integers import decimal_dfa
from deepinfer.structured.json_string import SHARED_RULES, edge, string_rules
from deepinfer.structured.layout import ArrayLayout, Layout, ObjectLayout
from deepinfer.structured.shapes import (
    EVERY_INTEGER,
    Integers,
    Reals,
    Strings,
    Values,
)
from deepinfer.structured.write_containers import array_rules, object_rules

# What stands for a kind of value in a grammar that is being written.
Written = Values | Integers | Reals | Strings | Layout

# A list of so many words is written out; more become an automaton.
_MOST_WORDS = 2000
# Numbers of at most 15 digits, with a sign and a point.
_SHORT = automaton.length_between(0, 16)
# Digits of a whole number; also of the fraction of a number without bounds.
_NUM_DIGITS = 16

_DIGIT, _FIRST_DIGIT = Chars(charset.of("0123456789")), Chars(charset.of("123456789"))
_WHOLE = Alt((Text("0"), Seq((_FIRST_DIGIT, Repeat(_DIGIT, 0, _NUM_DIGITS - 1)))))
_FRACTION = Seq((Text("."), Repeat(_DIGIT, 1, _NUM_DIGITS)))
# An exponent of two digits keeps the number within the range of float64.
_EXPONENT = Seq(
    (Chars(charset.of("eE")), Alt((EMPTY, Chars(charset.of("+-")))), Repeat(_DIGIT, 1, 2))
)


@dataclass(frozen=True)
class JsonRules:
    """The rules of a grammar of JSON text while they are written.

    names: of the rules for sets of schemas. strings: of rules for strings, which many places share.
    """

    names: Mapping[SchemaSet, str]
    rules: dict[str, Expr]
    prefix: str = ""
    strings: dict[Strings, str] = field(default_factory=dict)


class TooManyRules(Exception):
    """More than a grammar may have. schemas: what most of them are for."""

    def __init__(self, schemas: SchemaSet) -> None:
        self.schemas = schemas
        super().__init__(f"most rules are for {sorted(schemas)}")


def json_rules(
    values: Mapping[SchemaSet, Sequence[Written]], whitespace: str, prefix: str = ""
) -> JsonRules:
    """A rule for each set of schemas. values: the shapes of all that lead to each other.

    prefix: begins the names of all rules but the few that are alike in every grammar.
    Raises TooManyRules.
    """
    names = {schemas: f"{prefix}v{number}" for number, schemas in enumerate(values)}
    is_bounded = whitespace == "bounded"
    found = JsonRules(
        names,
        {
            "gap": _gap() if is_bounded else EMPTY,
            "space": Alt((EMPTY, Text(" "))) if is_bounded else EMPTY,
            **SHARED_RULES,
        },
        prefix,
    )
    num_rules: dict[SchemaSet, int] = {}
    for schemas, shapes in values.items():
        name, num_before = names[schemas], len(found.rules)
        parts = (shape_rule(f"{name}_{place}", one, found) for place, one in enumerate(shapes))
        found.rules[name] = Alt(tuple(parts))
        num_rules[schemas] = len(found.rules) - num_before
        if len(found.rules) > MAX_RULES:
            raise TooManyRules(max(num_rules, key=lambda one: num_rules[one]))
    return found


def shape_rule(name: str, shape: Written, found: JsonRules) -> Expr:
    """How a value of the shape is spelled; `name` begins the names of rules that it needs."""
    rules = found.rules
    if isinstance(shape, Strings):
        return _string(shape, found)
    if isinstance(shape, ArrayLayout):
        rules |= array_rules(name, shape, found.names)
        return Ref(name)
    if isinstance(shape, ObjectLayout):
        keys = [_string(other.keys, found) for other in shape.others]
        rules |= object_rules(name, shape, found.names, keys)
        return Ref(name)
    return _scalar(name, shape, rules)


def _gap() -> Expr:
    """Nothing, a space, or a new line with an indent: bounded, or a model may never end it."""
    spaces = Repeat(Chars(charset.of(" ")), 0, 16)
    tabs = Repeat(Chars(charset.of("\t")), 1, 8)
    return Alt((EMPTY, Text(" "), Seq((Text("\n"), Alt((spaces, tabs))))))


def _string(strings: Strings, found: JsonRules) -> Expr:
    if strings not in found.strings:
        name = found.strings[strings] = f"{found.prefix}s{len(found.strings)}"
        found.rules.update(_string_rules(name, strings))
    return Ref(found.strings[strings])


def _string_rules(name: str, strings: Strings) -> dict[str, Expr]:
    if automaton.is_any(strings.dfa):
        return string_rules(name, strings.low, strings.high)
    words = automaton.words(strings.dfa, _MOST_WORDS)
    if words is not None:
        return {name: Alt(tuple(Text(json.dumps(word, ensure_ascii=False)) for word in words))}
    start = f"{name}_"
    rules = dfa_rules(start, strings.dfa, edge, Text('"'))
    return rules | {name: Seq((Text('"'), Ref(f"{start}0")))}


def _scalar(name: str, shape: Values | Integers | Reals, rules: dict[str, Expr]) -> Expr:
    if isinstance(shape, Values):
        return Alt(tuple(Text(text) for text in sorted(shape.texts)))
    if isinstance(shape, Reals) and shape == Reals():
        optional = (Alt((EMPTY, part)) for part in (_FRACTION, _EXPONENT))
        return Seq((Alt((EMPTY, Text("-"))), _WHOLE, *optional))
    if isinstance(shape, Integers) and shape.dfa == EVERY_INTEGER:
        return Alt((_WHOLE, Seq((Text("-"), _FIRST_DIGIT, Repeat(_DIGIT, 0, _NUM_DIGITS - 1)))))
    if isinstance(shape, Integers):
        shortest, longest = automaton.length_range(shape.dfa)
        most = max(_NUM_DIGITS + 1, shortest + 3)
        dfa = shape.dfa
        if longest is None or longest > most:
            dfa = automaton.intersect(dfa, automaton.length_between(0, most))
    else:
        dfa = _decimals(shape)
    rules |= dfa_rules(f"{name}_", dfa, Chars, EMPTY)
    return Ref(f"{name}_0")


def _decimals(reals: Reals) -> Dfa:
    """The spellings of a range's numbers, whole numbers that are no part of it left out."""
    bounds = (reals.low, reals.high, reals.low_excluded, reals.high_excluded)
    if automaton.is_empty(reals.holes):
        return decimal_dfa(*bounds)
    # With 15 digits no other number reads back as a whole one.
    dfa = automaton.intersect(decimal_dfa(*bounds, num_digits=14), _SHORT)
    return automaton.subtract(dfa, _with_zeros(reals.holes))


def _with_zeros(whole: Dfa) -> Dfa:
    """Whole numbers, and the same with a point and zeros behind them: 2, 2.0, 2.00."""
    zero, point = charset.of("0"), charset.of(".")

    def step(state: tuple[int, int]) -> list[tuple[CharSet, tuple[int, int]]]:
        behind, place = state
        if behind:
            return [(zero, (2, 0))]
        edges = [(chars, (0, target)) for chars, target in whole.edges[place]]
        return [*edges, (point, (1, 0))] if place in whole.accepting else edges

    def accepts(state: tuple[int, int]) -> bool:
        behind, place = state
        return behind == 2 or (behind == 0 and place in whole.accepting)

    return automaton.build((0, 0), step, accepts)
