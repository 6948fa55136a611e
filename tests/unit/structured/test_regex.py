"""Regular expressions, against Python's `re`, which can be made to read as ECMA-262 does."""

import pickle
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from random import Random

import pytest

from deepinfer.structured import automaton
from deepinfer.structured.automaton import ANY, NOTHING, TooManyStates
from deepinfer.structured.regex import RegexError, full_dfa, search_dfa
from deepinfer.structured.regex_classes import SPACES, named
from tests.effort import effort

# Characters about which the readers disagree: a letter and a digit beyond ASCII, line ends, spaces
# that only one of them calls so. "a", "b" and "1" stand for the rest.
LETTERS = "ab1é٣ \n\r\u2028\x85\ufeff"
TEXTS = ["".join(text) for length in range(3) for text in product(LETTERS, repeat=length)]
TEXTS += ["".join(text) for length in (3, 4) for text in product("ab\n", repeat=length)]


@dataclass(frozen=True)
class Both:
    """A pattern, and what Python must be given to read it as ECMA-262 does."""

    text: str
    ecma: str


ECMA_SPACE = r"\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
SAME = [Both(text, text) for text in ("a", "b", "[ab]", "[^a]", r"\n", "é", r"[a-b\r]", "(?:)")]
DIFFERENT = [
    Both(r"\d", "[0-9]"),
    Both(r"\D", "[^0-9]"),
    Both(r"\w", "[0-9A-Za-z_]"),
    Both(r"\W", "[^0-9A-Za-z_]"),
    Both(r"\s", f"[{ECMA_SPACE}]"),
    Both(r"\S", f"[^{ECMA_SPACE}]"),
    Both(r"[^\d]", "[^0-9]"),
    Both(r"[^\w\s]", f"[^0-9A-Za-z_{ECMA_SPACE}]"),
    Both(r"[b\d-]", "[b0-9-]"),
    Both(".", r"[^\n\r\u2028\u2029]"),
    Both("$", r"\Z"),
    Both("^", "^"),
]


def random_pattern(random: Random, pieces: list[Both], depth: int) -> Both:
    kind = random.randrange(4) if depth else 0
    if kind == 0:
        return random.choice(pieces)
    parts = [random_pattern(random, pieces, depth - 1) for _ in range(random.randint(1, 3))]
    if kind == 1:
        return Both("".join(one.text for one in parts), "".join(one.ecma for one in parts))
    if kind == 2:
        text, ecma = "|".join(one.text for one in parts), "|".join(one.ecma for one in parts)
        return Both(f"({text})", f"({ecma})")
    times = random.choice(["*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "{1,2}?"])
    return Both(f"(?:{parts[0].text}){times}", f"(?:{parts[0].ecma}){times}")


@pytest.mark.parametrize("seed", range(8))
def test_against_re(seed):
    """A text let through that a client's validator refuses; or one refused that all would take."""
    random = Random(seed)
    for _ in range(25):
        pattern = random_pattern(random, SAME, 3)
        strict, lenient = search_dfa(pattern.text), search_dfa(pattern.text, lenient=True)
        assert strict == lenient
        full = full_dfa(pattern.text)
        for text in TEXTS:
            found = re.search(pattern.text, text)
            assert automaton.accepts(strict, text) == bool(found), (pattern.text, text)
            found = re.fullmatch(pattern.text, text)
            assert automaton.accepts(full, text) == bool(found), (pattern.text, text)


@pytest.mark.parametrize("seed", range(8))
def test_where_readers_disagree(seed):
    """A digit of another script where one of two validators wants 0 to 9."""
    random = Random(seed)
    for _ in range(25):
        pattern = random_pattern(random, SAME + DIFFERENT * 2, 3)
        strict, lenient = search_dfa(pattern.text), search_dfa(pattern.text, lenient=True)
        full = full_dfa(pattern.text)
        for text in TEXTS:
            readings = [bool(re.search(one, text)) for one in (pattern.text, pattern.ecma)]
            assert all(readings) or not automaton.accepts(strict, text), (pattern.text, text)
            assert automaton.accepts(lenient, text) or not any(readings), (pattern.text, text)
            readings = [bool(re.fullmatch(one, text)) for one in (pattern.text, pattern.ecma)]
            assert all(readings) or not automaton.accepts(full, text), (pattern.text, text)


MORE = [Both("a$", r"a\Z"), Both("^.$|^b", r"^[^\n\r\u2028\u2029]\Z|^b")]


@pytest.mark.parametrize("pattern", [*DIFFERENT, *MORE])
def test_single_disagreements_are_exact(pattern):
    """Everything on which both agree is allowed, not only ASCII."""
    strict, lenient = search_dfa(pattern.text), search_dfa(pattern.text, lenient=True)
    # In a longer text each reader may find a match at another place.
    for text in (*LETTERS, "", "a\n", "a\r", "\n\n", "ba", "ab\n"):
        readings = [bool(re.search(one, text)) for one in (pattern.text, pattern.ecma)]
        assert automaton.accepts(strict, text) == all(readings), text
        assert automaton.accepts(lenient, text) == any(readings), text


def test_sets_of_python():
    """A space that Python knows and we do not."""
    everything = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    spaces = {one for one in everything if re.match(r"\s", one)}
    assert {chr(code) for low, high in SPACES[1] for code in range(low, high + 1)} == spaces
    for letter in "dw":
        wide = {chr(c) for low, high in named(letter, True) for c in range(low, high + 1)}
        assert wide == {one for one in everything if re.match(rf"\{letter}", one)}


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        (r"^(a|b)$", ["a", "b"], ["ab", "", "a\n"]),
        (r"^a|b$", ["ax", "xb"], ["xa", "bx"]),
        (r"(^a)|(b$)", ["ax", "xb"], ["xa", "bx"]),
        (r"a^b|c", ["c"], ["ab", "a"]),
        (r"a$b", [], ["ab", "a", "a$b"]),
        (r"^$", [""], ["a", "\n"]),
        (r"^^a$$", ["a"], ["aa"]),
        (r"^(?:a|^b|c$)+$", ["ab"[:1], "ba", "ac", "bc"], ["ab", "ca"]),
        (r"^[\w.-]+$", ["a.b-c_1"], ["a b", "é"]),
        (r"^[a-c-e]$", ["b", "-", "e"], ["d"]),
        (r"^[-a]$", ["-", "a"], ["b"]),
        (r"^[[a]$", ["[", "a"], ["]"]),
        (r"^[\]\\^-]$", ["]", "\\", "^", "-"], ["a"]),
        (r"^[^^]$", ["a"], ["^"]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\{x\}$", ["{x}"], ["x"]),
        (r"^{x}{a,2}]$", ["{x}{a,2}]"], ["x"]),
        (r"^\x41\u0042\u{1F600}\cJ\0$", ["AB\U0001f600\n\0"], ["AB"]),
        (r"^\u{0000041}\t\v\f\/\-\ $", ["A\t\v\f/- "], []),
        (r"^(?<y>a)(?P<z>b)(?:c)$", ["abc"], ["ab"]),
        (r"^a{2}b{0,1}c{1,}$", ["aac", "aabccc"], ["ac", "aa", "aabb"]),
        (r"^a{0}$", [""], ["a"]),
        (r"^(a{0,2}){2}$", ["", "aaaa"], ["aaaaa"]),
        (r"^(|a)b$", ["b", "ab"], ["a"]),
        (r"", ["", "x"], []),
        (r"|", ["", "x"], []),
        ("^\u2028\U0001f600$", ["\u2028\U0001f600"], ["\u2028"]),
    ],
)
def test_examples(pattern, matches, others):
    """A construct that is read as something else than it says."""
    dfa = search_dfa(pattern)
    assert [text for text in matches if not automaton.accepts(dfa, text)] == []
    assert [text for text in others if automaton.accepts(dfa, text)] == []


def test_whole_text():
    """An output that only contains what it should be (the anchors may be left out, or be there)."""
    assert full_dfa("ab|c") == full_dfa("^(ab|c)$") == automaton.literals(["ab", "c"])
    assert full_dfa("^ab|c$") == automaton.literals(["ab", "c"])
    assert full_dfa("a^") == NOTHING
    assert search_dfa(".*") == search_dfa("^") == search_dfa("$") == search_dfa("x{0,9}") == ANY


@pytest.mark.parametrize(
    ("pattern", "position", "named_thing"),
    [
        ("a(?=b)", 1, "look-ahead"),
        ("a(?!b)", 1, "look-ahead"),
        ("(?<=a)b", 0, "look-behind"),
        ("(?<!a)b", 0, "look-behind"),
        (r"(a)\1", 3, "back-reference"),
        (r"(?<n>a)\k<n>", 7, "back-reference"),
        ("(?P<n>a)(?P=n)", 8, "back-reference"),
        (r"\bword", 0, "word boundary"),
        (r"a\B", 1, "word boundary"),
        ("(?i)a", 0, "flag"),
        ("(?i:a)", 0, "flag"),
        ("(?>a)", 0, "atomic"),
        ("a(?#c)", 1, "comment"),
        ("(a)?(?(1)b)", 4, "condition"),
        ("(?<1>a)", 0, "name"),
        ("(?<a>x)(?<a>y)", 7, "two groups"),
        ("a*+", 2, "possessive"),
        ("a{2}+", 4, "possessive"),
        ("a**", 2, "repeat"),
        ("a{2}{3}", 4, "repeat"),
        ("*a", 0, "repeat"),
        ("(+)", 1, "repeat"),
        ("(?:?a)", 3, "repeat"),
        ("a|*", 2, "repeat"),
        ("^*", 1, "repeat"),
        ("$?", 1, "repeat"),
        ("{2}", 0, "repeat"),
        ("a{,3}", 1, "two ways"),
        ("a{3,2}", 1, "exchanged"),
        ("a{9999999999}", 1, "limit"),
        ("(a", 0, "not closed"),
        ("a)", 1, "without"),
        ("x[a", 1, "not closed"),
        ("[a-", 0, "not closed"),
        ("[]a]", 1, "two ways"),
        ("[^]", 2, "two ways"),
        ("[b-a]", 1, "wrong order"),
        (r"[\d-z]", 1, "range"),
        (r"[a-\w]", 1, "range"),
        ("a\\", 1, "backslash"),
        (r"\p{L}", 0, "property"),
        (r"\Aa", 0, "anchor"),
        (r"\Z", 0, "anchor"),
        (r"\e", 0, "no escape"),
        (r"\x4", 0, "unfinished"),
        (r"\u{110000}", 0, "no character"),
        (r"\ud83d\ude00", 0, "no character"),
        ("\ud800", 0, "no character"),
        (r"\01", 0, "octal"),
        (r"[\1]", 1, "back-reference"),
        ("(" * 51, 49, "nested"),
        ("a" * 20_001, 20_000, "more than"),
    ],
)
def test_refused(pattern, position, named_thing):
    """An error that names nothing (D19), or a construct that is silently read as another."""
    for compile_it in (search_dfa, full_dfa):
        with pytest.raises(RegexError) as error:
            compile_it(pattern)
        assert named_thing in error.value.what
        assert error.value.position == position
        assert error.value.hint
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.what, again.position, again.hint) == (
        error.value.what,
        error.value.position,
        error.value.hint,
    )


HOSTILE = [
    "((a{1000}){1000}){1000}",
    "(){999999999}",
    "((){9999}){99999}",
    "(a|b)*a(a|b){30}",
    ".{0,5000}",
    "(a?){2000}",
    "((a?){50}){50}",
    "[a-z]{0,100}x[a-z]{0,100}y[a-z]{0,100}z",
    "^(?:(?:.{0,30}a){0,30}b){0,30}$",
    "(a{0,60}b{0,60}){0,60}",
    "(a{0,5}){0,5}" * 40,
    "|".join(f"[{chr(i)}-{chr(i + 3000)}]*" for i in range(100, 4000, 2)),
    "|".join(f"[{chr(i)}-{chr(i + 3000)}]b" for i in range(100, 4000, 2)),
    "|".join(f"{chr(i)}.*{chr(i + 1)}" for i in range(100, 1000)),
    ".*".join(chr(i) for i in range(200, 1200)),
    "(a*)*" * 3000,
    "(" * 49 + "a" + ")*" * 49,
    "(?:" * 49 + "a" + "){9}" * 49,
    "(a|" * 49 + "b" + ")*" * 49,
    r"(\W?){1000}",
    "[" + "".join(map(chr, range(0x100, 0x4E00, 2))) + "]{1,300}",
]


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile(pattern):
    """A pattern that keeps everybody waiting, or fills the memory (E10)."""
    for compile_it in (search_dfa, full_dfa, lambda text: search_dfa(text, lenient=True)):
        with effort(100), suppress(TooManyStates, RegexError):
            compile_it(pattern)


def test_plain_patterns_are_fast():
    """Patterns of every day that take longer than a step of the model."""
    patterns = [
        r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$",
        r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?(Z|[+-]\d{2}:\d{2})$",
        "^(" + "|".join(f"word{i * 37 % 101}x{i}" for i in range(100)) + ")$",
        "^.{0,200}$",
    ]
    with effort(40):
        sizes = [search_dfa(pattern).num_states for pattern in patterns]
    assert sizes == [7, 37, 26, 206, 201]
