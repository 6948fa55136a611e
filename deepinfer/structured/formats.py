"""JSON Schema's `format` as patterns.

What a format allows is often a matter of dispute between validators. A pattern here is a subset on
which they agree: every text that it matches is valid to all of them, but not every valid text
matches. Left out are, among others, leap seconds, quoted and non-ASCII parts of addresses, and
names that are near the limit of their length.
"""

from functools import cache, lru_cache

from deepinfer.structured.automaton import (
    Dfa,
    TooManyStates,
    intersect,
    length_between,
    length_range,
)
from deepinfer.structured.regex import full_dfa

# Dates: RFC 3339, the years 0001 to 9999.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_BY_FOUR = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = f"(?:[0-9]{{2}}{_BY_FOUR}|{_BY_FOUR}00)"
_DAYS = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_DAYS}|{_LEAP_YEAR}-02-29)"
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = f"{_CLOCK}:[0-5][0-9](?:\\.[0-9]{{1,9}})?(?:Z|[+-]{_CLOCK})"

# Durations: RFC 3339, appendix A. Each unit may be followed by the next smaller one only.
_NUM = "[0-9]{1,9}"
_DURATION = (
    f"P(?:(?:{_NUM}D|{_NUM}M(?:{_NUM}D)?|{_NUM}Y(?:{_NUM}M(?:{_NUM}D)?)?)(?:T#)?|T#|{_NUM}W)"
).replace("#", f"(?:{_NUM}H(?:{_NUM}M(?:{_NUM}S)?)?|{_NUM}M(?:{_NUM}S)?|{_NUM}S)")

# Names: RFC 1123. No two hyphens in a row, which is where encoded names of other scripts begin. The
# last label begins with a letter, lest the name look like an address of numbers.
_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_HOSTNAME = f"(?:{_LABEL}\\.)*[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)*"
_ATOM = "[A-Za-z0-9_+-]+"
_EMAIL = f"{_ATOM}(?:\\.{_ATOM})*@(?:{_LABEL}\\.)+[A-Za-z]{{2,}}"

_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"


def _ipv6() -> str:
    """RFC 4291: eight groups, the last two perhaps an IPv4 address; one :: for groups of zero."""
    forms = [f"(?:{_GROUP}:){{7}}{_GROUP}", f"(?:{_GROUP}:){{6}}{_IPV4}"]
    for num_left in range(8):
        left = f"{_GROUP}(?::{_GROUP}){{{num_left - 1}}}" if num_left else ""
        right = [f"{_GROUP}(?::{_GROUP}){{0,{6 - num_left}}}"] if num_left < 7 else []
        right += [f"(?:{_GROUP}:){{0,{5 - num_left}}}{_IPV4}"] if num_left < 6 else []
        forms.append(f"{left}::(?:{'|'.join(right)})?")
    return "|".join(forms)


# Addresses: RFC 3986. An authority has a name or an IPv4 address; without an authority, only
# schemes that have none.
_PLAIN = "A-Za-z0-9._~!$&'()*+,;="
_CODED = "%[0-9A-Fa-f]{2}"
_PCHAR = f"(?:[{_PLAIN}:@-]|{_CODED})"
_PORT = "(?:6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_AUTHORITY = f"(?:(?:[{_PLAIN}:-]|{_CODED})+@)?(?:{_HOSTNAME}|{_IPV4})(?::{_PORT})?"
_PATH = f"(?:/{_PCHAR}*)*"
_TAIL = f"(?:\\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_URI = (
    f"(?:[A-Za-z][A-Za-z0-9+.-]*://{_AUTHORITY}{_PATH}"
    f"|file:///(?:{_PCHAR}+{_PATH})?|(?:urn|mailto|tel):{_PCHAR}+{_PATH}){_TAIL}"
)
_RELATIVE = (
    f"(?://{_AUTHORITY}{_PATH}|/(?:{_PCHAR}+{_PATH})?|(?:[{_PLAIN}@-]|{_CODED})+{_PATH})?{_TAIL}"
)

_POINTER = "(?:/(?:[^/~]|~[01])*)*"  # RFC 6901

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _URI,
    "uri-reference": f"{_URI}|{_RELATIVE}",
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "json-pointer": _POINTER,
    # Python's jsonschema takes no digit after a zero here, not even in 100.
    "relative-json-pointer": f"(?:0|[1-9]{{1,9}}0?)(?:#|{_POINTER})",
}
# Lengths that a text of the format must keep as well: a label 63, a name 253, an address 254, what
# is before its @ 64. The whole is not counted, but the labels are few and short enough.
LENGTHS = {
    "hostname": "[^.]{1,63}(?:\\.[^.]{1,37}){0,5}",
    "email": "[^@]{1,64}@[^.@]{1,37}(?:\\.[^.@]{1,37}){1,4}",
}


# A plain form of "uri" for use with a length limit: to count the whole of the full form would take
# too many states. A scheme, a name, perhaps a port, a path with a query; no fragment.
_WEB = f"[A-Za-z][A-Za-z0-9+.-]*://{_HOSTNAME}(?::[1-9][0-9]{{0,3}})?(?:[/?](?:{_PCHAR}|[/?])*)?"
_WEB_TAIL = 500  # characters from the path on: three states each


def format_dfa(name: str, most: int | None = None) -> Dfa | None:
    """The texts of a format that every validator takes; None if the format is not known here.

    most: only texts of at most so many characters. Where to count all of them would take too many
    states, a plainer subset of the format takes its place: of "email" and "hostname" what has at
    most 63 characters, of "uri" and "uri-reference" addresses of the usual form. Raises
    TooManyStates where there is none.
    """
    if name not in FORMATS:
        return None
    dfa = _known_dfa(name)
    longest = length_range(dfa)[1]
    if most is None or (longest is not None and longest <= most):
        return dfa
    try:
        return intersect(dfa, length_between(0, most))
    except TooManyStates:
        if name not in ("email", "hostname", "uri", "uri-reference"):
            raise
    if name in LENGTHS:
        # A label has no more than 63 characters if the whole has not.
        return intersect(full_dfa(FORMATS[name]), length_between(0, min(most, 63)))
    if most < 100:
        return intersect(full_dfa(_WEB), length_between(0, most))
    return _web_dfa(most)


@cache
def _known_dfa(name: str) -> Dfa:
    dfa = full_dfa(FORMATS[name])
    return intersect(dfa, full_dfa(LENGTHS[name])) if name in LENGTHS else dfa


@lru_cache(maxsize=16)
def _web_dfa(most: int) -> Dfa:
    """Addresses of the plain form; each part has its share of `most` characters."""
    name_len = min(63, most // 3)
    tail_len = min(most - 12 - len("://") - name_len - len(":9999"), _WEB_TAIL)
    lengths = (
        f"[^:]{{1,12}}://[^/?:]{{1,{name_len}}}(?::[0-9]{{1,4}})?(?:[/?].{{0,{tail_len - 1}}})?"
    )
    return intersect(full_dfa(_WEB), full_dfa(lengths))
