"""How characters are spelled inside a JSON string (RFC 8259, section 7).

Knows JSON strings and character sets. Does not know schemas: which characters a string may have is
an automaton's business, whose edges are spelled here.

A character has up to three spellings: as it is, unless it is a quote, a backslash or a control
character; a backslash with one letter, for eight of them; and a backslash, u and four hexadecimal
digits, of either case, or two of these (a surrogate pair) above U+FFFF. A lone surrogate is no
character, so it is never spelled.

The last form is offered for the characters that need it, and for all where all characters are
allowed. Elsewhere an ordinary character is only spelled as it is, to keep grammars small.

Lengths. A string is runs of characters that are spelled as they are, with escapes between them.
Each run is one counted repetition that a fixed character follows, the closing quote or a backslash.
This form is fast, because its masks of tokens are the same for all counts; with a rule for each
number of characters, nearly each token would need a mask of its own, 27 ms with 129,000 tokens.

The rule after an escape has to know how many characters are used up. So there is a rule for each
place in the string, and for each length of a run a way from one to another:

    p-0 ::= raw{0,2} quote | run0 escaped p-1 | run1 escaped p-2     run0 ::= raw{0} backslash
    p-1 ::= raw{0,1} quote | run0 escaped p-2                        run1 ::= raw{1} backslash
    p-2 ::= raw{0,0} quote

is a string of at most 2 characters. Beyond MAX_PLACES characters, places are further apart, and a
run with its escape counts as if it went up to the next place.
"""

from deepinfer.errors import RequestError
from deepinfer.structured import charset
from deepinfer.structured.charset import CharSet
from deepinfer.structured.grammar import Alt, Chars, Expr, Ref, Repeat, Seq, Text

MAX_PLACES = 32
MAX_LENGTH = 1_000_000
# Ways between places, in the rules of one string.
MAX_WAYS = 3000

_CONTROLS = charset.char_range(0x00, 0x1F)
_NEED_ESCAPE = charset.union(_CONTROLS, charset.of('"\\'))
RAW = charset.complement(_NEED_ESCAPE)
_LETTERS = {'"': '"', "\\": "\\", "/": "/", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
_HEX = Chars(charset.of("0123456789abcdefABCDEF"))
_D = Chars(charset.of("dD"))


def _hex_digits(digits: str) -> Chars:
    return Chars(charset.of(digits.lower() + digits.upper()))


# What follows the backslash of any escape.
ESCAPED = Ref("json-escaped")
# The second half of a surrogate pair.
_LOW_UNIT = (Text("\\u"), _D, _hex_digits("cdef"), _HEX, _HEX)
# For `Grammar.rules`, wherever `edge` or `string_rules` is used.
SHARED_RULES: dict[str, Expr] = {
    "json-escape": Seq((Text("\\"), ESCAPED)),
    "json-escaped": Alt(
        (Chars(charset.of("".join(_LETTERS.values()))), Seq((Text("u"), Ref("json-unit"))))
    ),
    "json-unit": Alt(
        (
            Seq((_hex_digits("0123456789abcef"), _HEX, _HEX, _HEX)),
            Seq((_D, _hex_digits("01234567"), _HEX, _HEX)),
            Seq((_D, _hex_digits("89ab"), _HEX, _HEX, *_LOW_UNIT)),
        )
    ),
}
_RAW, _QUOTE, _BACKSLASH = Chars(RAW), Text('"'), Text("\\")
_ANY = Alt((_RAW, Ref("json-escape")))


def edge(chars: CharSet) -> Expr:
    """One character of the set, as it is spelled inside a JSON string. Needs SHARED_RULES."""
    if chars == charset.ALL:
        return _ANY
    ways: list[Expr] = []
    raw = charset.intersect(chars, RAW)
    if raw:
        ways.append(Chars(raw))
    letters = [name for one, name in _LETTERS.items() if charset.contains(chars, ord(one))]
    if letters:
        ways.append(Seq((Text("\\"), Chars(charset.of("".join(letters))))))
    ways.extend(_units(charset.intersect(chars, _NEED_ESCAPE)))
    return ways[0] if len(ways) == 1 else Alt(tuple(ways))


def _units(chars: CharSet) -> list[Expr]:
    """Characters below U+0100 as backslash, u, 00 and two digits; one way for each first digit."""
    low_digits: dict[int, str] = {}
    for first, last in chars:
        for code in range(first, last + 1):
            low_digits[code >> 4] = low_digits.get(code >> 4, "") + f"{code & 15:x}"
    return [
        Seq((Text(f"\\u00{high:x}"), _hex_digits(digits))) for high, digits in low_digits.items()
    ]


def string_rules(prefix: str, low: int, high: int | None) -> dict[str, Expr]:
    """A JSON string of low to high characters of any kind, quotes included, as rules.

    The start is the rule `prefix`; the others begin with it and a hyphen. They need
    SHARED_RULES. high None: without a limit. A character counts as one however it is
    spelled. high may be above MAX_LENGTH and then counts as that.

    Exact if high, or low where there is no high, is at most MAX_PLACES, and for a string without
    escapes. Otherwise strings with many escapes may be missing, but none is too short or too long.

    Raises RequestError if low is above high or MAX_LENGTH.
    """
    if low > MAX_LENGTH or (high is not None and low > high):
        what = f"a string of {low} to {high} characters cannot be written"
        hint = f"minLength is at most maxLength and at most {MAX_LENGTH}"
        raise RequestError(what, field="so_args.schema", hint=hint)
    if high is None:
        return _at_least(prefix, low)
    high = min(high, MAX_LENGTH)
    num_places = MAX_PLACES
    while True:
        rules, num_ways = _between(prefix, low, high, num_places)
        if num_ways <= MAX_WAYS:
            return rules
        num_places //= 2


def _between(prefix: str, low: int, high: int, num_places: int) -> tuple[dict[str, Expr], int]:
    """The rules, and how many ways there are between places.

    A place is (most characters that may be used up, in steps; fewest that are, up to `low`).
    """
    step = -(-high // num_places) or 1
    start = (0, 0)
    names = {start: f"{prefix}-0"}
    rules: dict[str, Expr] = {prefix: Seq((_QUOTE, Ref(names[start])))}
    num_ways = 0
    todo = [start]
    for steps, fewest in todo:  # grows as it is read
        ways = [_end(max(low - fewest, 0), high - steps * step)]
        for run in range(high // step - steps):
            most = steps + run + 1
            for kind, length in (("run", run * step + 1), ("full", (run + 1) * step)):
                after = most, min(fewest + length, low)
                if low - after[1] > high - most * step:
                    continue  # too few characters would be left, unless the run is a full one
                if after not in names:
                    names[after] = f"{prefix}-{len(names)}"
                    todo.append(after)
                ways.append(Seq((Ref(f"{prefix}-{kind}{run}"), ESCAPED, Ref(names[after]))))
                break
        num_ways += len(ways)
        rules[names[steps, fewest]] = Alt(tuple(ways))
        if num_ways > MAX_WAYS:
            break
    return rules | _runs(prefix, high // step, step), num_ways


def _at_least(prefix: str, low: int) -> dict[str, Expr]:
    """Place k: k steps of characters are there for certain; the last one: enough are."""
    step = -(-low // MAX_PLACES) or 1
    num_steps = -(-low // step)
    enough = Ref(f"{prefix}-{num_steps}")
    rules: dict[str, Expr] = {prefix: Seq((_QUOTE, Ref(f"{prefix}-0")))}
    for steps in range(num_steps):
        missing = low - steps * step
        ways = [_end(missing, None), Seq((_run(missing - 1, None), ESCAPED, enough))]
        for run in range(-(-(missing - 1) // step)):
            after = Ref(f"{prefix}-{steps + (run * step + 1) // step}")
            ways.append(Seq((Ref(f"{prefix}-run{run}"), ESCAPED, after)))
        rules[f"{prefix}-{steps}"] = Alt(tuple(ways))
    rules[enough.name] = Alt((_end(0, None), Seq((_run(0, None), ESCAPED, enough))))
    return rules | _runs(prefix, num_steps, step)


def _runs(prefix: str, num_steps: int, step: int) -> dict[str, Expr]:
    """For each number of steps: a run that ends with the escape in the last of them, or at its end.

    Those that no way leads to are dropped when the grammar is written.
    """
    rules: dict[str, Expr] = {}
    for run in range(num_steps):
        last = (run + 1) * step - 1
        rules[f"{prefix}-run{run}"] = _run(run * step, last)
        rules[f"{prefix}-full{run}"] = _run(last, last)
    return rules


def _run(low: int, high: int | None) -> Expr:
    """So many characters as they are, and the beginning of an escape."""
    return Seq((Repeat(_RAW, low, high), _BACKSLASH))


def _end(low: int, high: int | None) -> Expr:
    """So many characters as they are, and the end of the string."""
    return Seq((Repeat(_RAW, low, high), _QUOTE))
