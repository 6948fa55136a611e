"""Whether the references and patterns of a JSON schema can be used.

Looks only where a validator would: not into definitions that nothing refers to. Patterns are tried
with Python's regular expressions, after a few spellings that differ between languages have been
replaced, so that a pattern is rather taken than refused.

Does not check the shape of keywords; schema_check.py has done so before.
"""

import re
import warnings
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from deepinfer.recipe.json_text import compact

_ONE = ("not", "items", "contains", "additionalProperties", "propertyNames")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "dependencies")
# Where schemas are that nothing may refer to, and that are used only with others.
_DEFINED = ("$defs", "definitions")
_ANCHORS = ("$anchor", "$dynamicAnchor")
_CONDITIONAL = ("if", "then", "else")
_KNOWN = re.compile(
    r"https?://json-schema\.org/((draft-0[467]|draft/20(19-09|20-12))/)?schema#?|#?"
)
_REPLACED = (
    (re.compile(r"\\[pP](\{[^}]*\}|[A-Za-z])|\\c[A-Za-z]|\\u\{[^}]*\}|\\x\{[^}]*\}"), "."),
    (re.compile(r"\(\?<(?=[A-Za-z_])"), "(?P<"),
    (re.compile(r"\\k<(\w+)>"), r"(?P=\1)"),
)


def link_fault(schema: Any) -> str | None:
    """The first reference that leads nowhere or pattern that is none, or None."""
    if isinstance(schema, dict):
        named = schema.get("$schema", "")
        if not _KNOWN.fullmatch(named):
            return (
                f"Unknown meta-schema: '{named}'. "
                "Custom meta-schemas must be registered in the registry before use"
            )
    return _foreign_fault(schema) or _used_fault(schema)


def _foreign_fault(schema: Any) -> str | None:
    """The first reference to another document, wherever in this one it is."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict):
            continue
        reference = one.get("$ref", "#")
        if not reference.startswith("#") and not _KNOWN.fullmatch(reference):
            return _cannot_fetch(reference)
        waiting += reversed([*_inner(one), *_unused(one)])
    return None


def _used_fault(schema: Any) -> str | None:
    """The first fault where a validator would look."""
    anchors = frozenset(_anchors(schema))
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict) or id(one) in seen:
            continue
        seen.add(id(one))
        fault = _reference_fault(one, schema, anchors) or _pattern_fault(one)
        if fault:
            return fault
        waiting += reversed([*_inner(one), *_targets(one, schema)])
    return None


def _inner(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas inside a schema that a validator would use."""
    for name, value in schema.items():
        if name in _NAMED and isinstance(value, dict):
            yield from value.values()
        elif name in _MANY and isinstance(value, list):
            yield from value
        elif name in _ONE:
            yield value
    if "if" in schema and ("then" in schema or "else" in schema):
        yield from (schema[name] for name in _CONDITIONAL if name in schema)


def _unused(schema: dict[str, Any]) -> Iterator[Any]:
    """The other schemas inside a schema."""
    for name, value in schema.items():
        if name in _DEFINED and isinstance(value, dict):
            yield from value.values()
        elif name in _CONDITIONAL:
            yield value


def _pattern_fault(schema: dict[str, Any]) -> str | None:
    if "pattern" in schema and not _is_pattern(schema["pattern"]):
        return f'{compact(schema["pattern"])} is not a "regex"'
    for pattern, value in schema.get("patternProperties", {}).items():
        if not _is_pattern(pattern):
            return f'{compact(value)} is not a "regex"'
    return None


def _is_pattern(text: str) -> bool:
    for spelling, replacement in _REPLACED:
        text = spelling.sub(replacement, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about spellings that may change their meaning
            re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _targets(schema: dict[str, Any], root: Any) -> Iterator[Any]:
    """What the schema refers to inside the document."""
    reference = schema.get("$ref", "")
    if reference.startswith("#/"):
        yield _at(root, reference)


class _Nowhere(Exception):
    """A pointer leads to nothing."""


def _reference_fault(schema: dict[str, Any], root: Any, anchors: frozenset[str]) -> str | None:
    """Of a reference into this document; those to others have been seen to."""
    reference = schema.get("$ref", "#")
    try:
        if reference.startswith("#/"):
            _at(root, reference)
    except _Nowhere:
        return f"Pointer '{unquote(reference[1:])}' does not exist"
    name = reference.removeprefix("#")
    is_anchor = reference.startswith("#") and name and not name.startswith("/")
    return f"Anchor '{name}' does not exist" if is_anchor and name not in anchors else None


def _cannot_fetch(reference: str) -> str:
    is_whole = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", reference)
    why = f"Retrieval is disabled, cannot fetch {reference}"
    if not is_whole:
        why = "No base URI is available"
    return f"Resource '{reference}' is not present in a registry and retrieving it failed: {why}"


def _at(root: Any, reference: str) -> Any:
    """What a pointer such as #/$defs/x leads to."""
    for step in unquote(reference)[2:].split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict) and name in root:
            root = root[name]
        elif isinstance(root, list) and name.isdecimal() and int(name) < len(root):
            root = root[int(name)]
        else:
            raise _Nowhere
    return root


def _anchors(value: Any) -> Iterator[str]:
    """All anchors of a document."""
    if isinstance(value, dict):
        yield from (value[k] for k in _ANCHORS if isinstance(value.get(k), str))
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _anchors(one)
