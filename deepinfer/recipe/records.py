"""Reading JSON objects with known fields: records, and records of which a tag says the kind.

A record becomes a dict of all its fields. Fields that it does not know are ignored. Faults are
found in the order of the body first, then come missing fields in the order of the description.
An array is a record, too, with the fields in the order of the description: the released recipe
takes it. Of a tag it takes a number, too; that is not done here.

Knows nothing of any protocol.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from deepinfer.recipe.fields import (
    Reader,
    Unreadable,
    read_at,
    unknown_variant,
    wrong_type,
)


class Field(NamedTuple):
    """A field of a record. If it need not be there, it is `otherwise` when it is not.

    counted: an array that stands for the record must have it even so.
    """

    read: Reader
    needed: bool = True
    otherwise: Any = None
    counted: bool = True


class Record(NamedTuple):
    """A description of a record. label: what errors call it."""

    label: str
    fields: Mapping[str, Field]


def need(read: Reader) -> Field:
    """A field that must be there."""
    return Field(read)


def maybe(read: Reader, *, counted: bool = True) -> Field:
    """A field that may be absent or null, and is None then. counted: of Field."""
    return Field(
        lambda value: None if value is None else read(value), needed=False, counted=counted
    )


def unless_absent(read: Reader, otherwise: Any) -> Field:
    """A field that may be absent, but not null."""
    return Field(read, needed=False, otherwise=otherwise, counted=False)


def prefixed(name: str, read: Reader) -> Reader:
    """The same reader; its errors begin with the field's name."""

    def read_named(value: Any) -> Any:
        try:
            return read(value)
        except Unreadable as error:
            error.text = f"field `{name}`: {error.text}"
            raise error.within(name) from None

    return read_named


def record(label: str, fields: Mapping[str, Field]) -> Reader:
    """A reader of a record."""
    described = Record(label, fields)

    def read(value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            return _from_object(described, value)
        if isinstance(value, list):
            found = _from_array(described, value)
            if len(value) > len(fields):
                raise _wrong_length(len(value), "fewer elements in array")
            return found
        raise wrong_type(value, label)

    return read


def tagged(
    label: str,
    tag: str,
    kinds: Mapping[str, Mapping[str, Field]],
    *,
    labels: Mapping[str, str] | None = None,
    others: str | None = None,
) -> Reader:
    """A reader of a record whose field `tag` names its kind; the kind stays in the dict.

    label: what errors call the whole. labels: what they call a kind, where it is not the usual.
    others: the kind of records with an unknown tag, all fields of which are ignored.
    """

    def described(kind: str) -> Record:
        usual = f"struct variant {label}::{''.join(w.capitalize() for w in kind.split('_'))}"
        return Record((labels or {}).get(kind, usual), kinds[kind])

    def read(value: Any) -> dict[str, Any]:
        kind = _tag(value, tag, f"internally tagged enum {label}")
        if kind not in kinds:
            if others is None:
                raise unknown_variant(kind, list(kinds)).within(tag)
            return {tag: others}
        one = described(kind)
        if isinstance(value, dict):
            return {tag: kind, **_from_object(one, value)}
        found = {tag: kind, **_from_array(one, value[1:])}
        if len(value) - 1 > len(one.fields):
            raise _wrong_length(len(value) - 1, f"{_elements(one)} in sequence")
        return found

    return read


def _tag(value: Any, tag: str, label: str) -> str:
    """The tag of a tagged record."""
    if isinstance(value, dict) and tag in value:
        kind = value[tag]
    elif isinstance(value, list) and value:
        kind = value[0]
    elif isinstance(value, dict | list):
        raise Unreadable(f"missing field `{tag}`")
    else:
        raise wrong_type(value, label)
    if not isinstance(kind, str):
        raise wrong_type(kind, "variant identifier").within(tag)
    return kind


def _from_object(described: Record, value: Mapping[str, Any]) -> dict[str, Any]:
    fields = described.fields
    found = {k: read_at(k, fields[k].read, v) for k, v in value.items() if k in fields}
    for name, one in fields.items():
        if name not in found and one.needed:
            raise Unreadable(f"missing field `{name}`").within(name)
    return {name: found.get(name, one.otherwise) for name, one in fields.items()}


def _from_array(described: Record, values: list[Any]) -> dict[str, Any]:
    found = {}
    for index, (name, one) in enumerate(described.fields.items()):
        if index < len(values):
            found[name] = read_at(name, one.read, values[index])
        elif one.counted:
            raise _wrong_length(index, f"{described.label} with {_elements(described)}")
        else:
            found[name] = one.otherwise
    return found


def _elements(described: Record) -> str:
    num_fields = len(described.fields)
    return f"{num_fields} element" if num_fields == 1 else f"{num_fields} elements"


def _wrong_length(num_values: int, wanted: str) -> Unreadable:
    return Unreadable(f"invalid length {num_values}, expected {wanted}")
