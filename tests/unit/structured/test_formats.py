"""JSON Schema's formats: words of each, shown to those who check them."""

import datetime
import ipaddress
import re
import urllib.parse
import uuid
from random import Random

import pytest

from deepinfer.structured import automaton
from deepinfer.structured.formats import FORMATS, _known_dfa, format_dfa
from tests.effort import effort
from tests.unit.structured.dfa_words import random_word

GOOD = {
    "date": ["2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31", "2023-04-30"],
    "time": ["00:00:00Z", "23:59:59.123456789+23:59", "12:30:00-00:00"],
    "date-time": ["2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52Z", "1996-12-19T16:39:57-08:00"],
    "duration": ["P1D", "P1Y2M3DT4H5M6S", "PT36H", "P4W", "PT1M", "P1M", "P1YT1S"],
    "email": ["joe.bloggs@example.com", "a+b_c-d@x-y.co.uk"],
    "hostname": ["localhost", "www.example.com", "a-b.c1", "1.example"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "192.168.1.10"],
    "ipv6": ["::", "::1", "1::", "2001:db8::8a2e:370:7334", "::ffff:192.0.2.1", "1:2:3:4:5:6:7:8"],
    "uri": [
        "https://example.com",
        "http://user:pw@example.com:8080/a%20b/c?d=e&f#g",
        "urn:isbn:0451450523",
        "mailto:a@b.com",
        "ftp://127.0.0.1/x",
        "file:///etc/hosts",
    ],
    "uri-reference": [
        "",
        "/a/b",
        "a/b?c",
        "#top",
        "?q=1",
        "//example.com/x",
        "https://a.b/c",
        "../x",
    ],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000"],
    "json-pointer": ["", "/", "/a/0/~0~1", "/é\n"],
    "relative-json-pointer": ["0", "1/a", "10#", "0/"],
}
BAD = {
    "date": ["2023-02-29", "1900-02-29", "0000-01-01", "2024-13-01", "2024-00-01", "2024-04-31",
             "2024-1-1", "24-01-01", "2024-01-01\n", "0000-02-29"],
    "time": ["00:00:00", "24:00:00Z", "23:59:60Z", "12:60:00Z", "12:00Z", "12:00:00.Z",
             "12:00:00+24:00"],
    "date-time": ["2023-02-29T12:00:00Z", "2024-01-01 12:00:00Z", "2024-01-01T12:00:00",
                  "2024-01-01"],
    "duration": ["P", "PT", "P1YT", "P1D1Y", "P1Y1D", "PT1H1S", "P1W1D", "1D", "P1S", "P1.5D"],
    "email": ["a@b", "a@@b.c", ".a@b.cd", "a.@b.cd", "a..b@c.de", "a@-b.cd", "a b@c.de", "@b.cd",
              "a" * 65 + "@b.cd"],
    "hostname": ["", "-a.b", "a-.b", "a..b", "a_b", "a.", "127.0.0.1", "xn--a", "a" * 64],
    "ipv4": ["256.0.0.1", "01.2.3.4", "1.2.3", "1.2.3.4.5", "1.2.3.4\n"],
    "ipv6": [":::", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "12345::", "::1%eth0", "g::",
             "1::2:3:4:5:6:7:8", "::1.2.3", ":1", "1:"],
    "uri": ["", "example.com", "//example.com", "http://", "http://a b", "http://a.b/%2",
            "http://a:70000", "1http://a.b", "http:/a"],
    "uri-reference": ["http://a b", "\\", "a b", "%1", "a:b", "/[", "#a#b"],
    "uuid": ["123e4567e89b12d3a456426614174000", "{123e4567-e89b-12d3-a456-426614174000}", "g" * 8],
    "json-pointer": ["a", "/~", "/~2", "#/a"],
    "relative-json-pointer": ["", "01", "-1", "/a", "1##", "1a", "100"],
}  # fmt: skip


def is_duration(text: str) -> bool:
    """ISO 8601 in general; RFC 3339 allows less: no gap between the units."""
    units = "".join(re.findall("[A-Z]", text[1:]))
    days, _, clock = units.partition("T")
    return units == "W" or (
        units != "" and days in "YMD" and clock in "HMS" and not units.endswith("T")
    )


def is_uri(text: str) -> bool:
    parts = urllib.parse.urlsplit(text)
    assert parts.port is None or 0 < parts.port < 65536
    assert parts.hostname or not parts.netloc
    return bool(parts.scheme) and bool(parts.netloc or parts.path)


CHECKS = {
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "date-time": datetime.datetime.fromisoformat,
    "duration": is_duration,
    "email": lambda text: text.count("@") == 1 and len(text) <= 254 and text.index("@") <= 64,
    "hostname": lambda text: len(text) <= 253 and all(0 < len(x) < 64 for x in text.split(".")),
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uri": is_uri,
    "uri-reference": lambda text: urllib.parse.urljoin("http://a.b/c", text),
    "uuid": uuid.UUID,
    "json-pointer": lambda text: text == "" or text.startswith("/"),
    "relative-json-pointer": lambda text: text[0].isdecimal(),
}


@pytest.mark.parametrize("name", FORMATS)
def test_examples(name):
    """A format that refuses what everybody writes, or lets through what nobody reads."""
    dfa = format_dfa(name)
    assert [text for text in GOOD[name] if not automaton.accepts(dfa, text)] == []
    assert [text for text in BAD[name] if automaton.accepts(dfa, text)] == []


@pytest.mark.parametrize("name", FORMATS)
def test_words_are_valid(name):
    """An output that a client's validator refuses although the format was asked for."""
    random = Random(8)
    dfa = format_dfa(name)
    for number in range(400):
        # Long words too, which come near the limits.
        word = random_word(dfa, random, stop=0.02 if number % 2 else 0.3)
        result = CHECKS[name](word)
        assert result or name in ("ipv4", "time", "json-pointer"), word


@pytest.mark.parametrize("name", FORMATS)
def test_words_are_valid_to_jsonschema(name):
    """The validator that most Python clients use refuses an output."""
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    if name not in checker.checkers:
        pytest.skip("jsonschema has no check for it here")
    random = Random(9)
    dfa = format_dfa(name)
    for _ in range(300):
        word = random_word(dfa, random, stop=0.1)
        checker.check(word, name)
    for word in GOOD[name]:
        checker.check(word, name)


def test_every_day():
    """A 29th of February too many or too few, in any of ten thousand years."""
    dfa = format_dfa("date")
    for year in range(0, 10_000, 1):
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert automaton.accepts(dfa, f"{year:04}-02-29") == (leap and year > 0)
    for year in (1, 1900, 2000, 2023, 2024):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    datetime.date.fromisoformat(text)
                    expected = True
                except ValueError:
                    expected = False
                assert automaton.accepts(dfa, text) == expected, text


def test_ipv6_against_ipaddress():
    """A form of :: that is missing, or allowed twice."""
    random = Random(10)
    dfa = format_dfa("ipv6")
    parts = ["1", "ab", "FFFF", "0", ":", ":", ":", "::", "1.2.3.4", "12345"]
    for _ in range(20_000):
        num_parts = random.randint(1, 16)
        chosen = [random.choice(parts) for _ in range(num_parts)]
        text = ":".join(chosen[: num_parts // 2]) if random.random() < 0.5 else "".join(chosen)
        try:
            ipaddress.IPv6Address(text)
            expected = True
        except ValueError:
            expected = False
        assert automaton.accepts(dfa, text) == expected, text


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("most", [10, 40, 64, 100, 150, 254, 2083])
def test_with_a_length_limit(name, most):
    """A format with a length limit, as libraries write it, that is too much to count (D07)."""
    try:
        dfa = format_dfa(name, most)
    except automaton.TooManyStates:
        assert most == 2083
        assert name.endswith("json-pointer")
        return
    assert automaton.length_range(dfa)[1] <= most
    assert automaton.is_empty(dfa) == (name in ("date-time", "uuid") and most <= 10)
    for text in GOOD[name]:
        if len(text) <= most and not name.startswith("uri"):
            assert automaton.accepts(dfa, text)
    if name.startswith("uri") and most >= 40:
        assert automaton.accepts(dfa, "https://example.com/a%20b?c=d")
    random = Random(11)
    for _ in range(50 if not automaton.is_empty(dfa) else 0):
        word = random_word(dfa, random, stop=0.05)
        assert len(word) <= most
        assert CHECKS[name](word) or name in ("ipv4", "time", "json-pointer"), word


def test_unknown():
    """A format that nothing enforces, taken for one that is."""
    for name in ("regex", "idn-email", "idn-hostname", "iri", "uri-template", "Date", ""):
        assert format_dfa(name) is None


def test_time():
    """A format that takes long to build, at the first request that names it."""
    with effort(60):
        for name in FORMATS:
            _known_dfa.__wrapped__(name)
