"""The input of a custom tool, out of its JSON."""

import json

import pytest

from deepinfer.recipe.custom_input import CustomInput

PREFIX = '{"input": "'
TEXTS = ["plain", 'a "quoted" \\ \n\t\b\f\r/ é 😀 \x01', "", "}", '", "x": "']


def read(arguments: str, size: int) -> str:
    custom = CustomInput()
    pieces = [custom.push(arguments[i : i + size]) for i in range(0, len(arguments), size)]
    return "".join(pieces) + custom.finish()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_text_is_unescaped_however_it_is_cut(text: str, ascii_only: bool, size: int) -> None:
    """A patch arrives with backslashes in it, or half a character, because an escape was cut."""
    arguments = json.dumps({"input": text, "more": "x"}, ensure_ascii=ascii_only)
    assert read(arguments, size) == text


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "arguments", ["", "{", '{"input', '{"patch": "x"}', '{"input": 5}', "{}", '{"input":"x"}']
)
def test_other_arguments_stay(arguments: str, size: int) -> None:
    """A model that misnames the parameter is answered with nothing at all."""
    assert read(arguments, size) == arguments


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        ("\\q\\x", "\\q\\x"),
        ("\\ud800 z", "\\ud800 z"),
        ("\\ude00", "\\ude00"),
        ("\\ud83d\\u0041", "\\ud83dA"),
        ("a\\", "a\\"),
        ("a\\u00", "a\\u00"),
        ("\\ud83d\\ud", "\\ud83d\\ud"),
        ("\\\\n", "\\n"),
    ],
)
def test_escape_without_meaning_stands_for_itself(inside: str, expected: str, size: int) -> None:
    """Text is lost, or half a surrogate pair gets out, which no UTF-8 can carry."""
    assert read(PREFIX + inside, size) == expected


def test_text_is_not_held() -> None:
    """A long patch arrives when it is complete."""
    custom = CustomInput()
    assert custom.push(PREFIX) == ""
    assert [custom.push(piece) for piece in ("ab", "c\\", "n", 'd"', "x")] == [
        *("ab", "c", "\n", "d", ""),
    ]
