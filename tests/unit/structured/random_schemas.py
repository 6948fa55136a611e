"""Random JSON schemas: every keyword that is enforced, alone and mixed, sensible and not."""

import random
from typing import Any

KEYS = ("a", "b", "kind", "名", 'q"x', "n1")
WORDS = ("red", "green", "", "a b", "é", "😀", "\n", '"')
PATTERNS = ("^[a-z]+$", "b", "^a.c$", r"^\d{2,4}$", r"\w+@\w+", "^(foo|bar)*$", "^[^x]{1,5}$", "^$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "uri", "hostname")
Schema = Any


def random_schema(rng: random.Random, depth: int = 3) -> Schema:
    """One schema; the deeper, the simpler."""
    if depth <= 0 or rng.random() < 0.05:
        return rng.choice([True, {}, {"type": "integer"}, {"type": "null"}, {"const": 1}])
    makers = (_enum, _number, _string, _array, _object, _object, _object, _mixed, _combined)
    return rng.choice(makers)(rng, depth)


def random_document(rng: random.Random) -> Schema:
    """A schema whose parts may refer to each other."""
    schema = random_schema(rng)
    if isinstance(schema, dict) and rng.random() < 0.4:
        schema["$defs"] = {"one": random_schema(rng, 2), "two": random_schema(rng, 2)}
        _refer(rng, schema)
    return schema


def _refer(rng: random.Random, schema: Schema) -> None:
    """Put a reference in the place of some property or item."""
    target = rng.choice(["#", "#/$defs/one", "#/$defs/two"])
    for container in (schema.get("properties"), schema):
        if isinstance(container, dict):
            for key in list(container):
                if rng.random() < 0.4 and (container is not schema or key == "items"):
                    container[key] = {"$ref": target}


def _enum(rng: random.Random, depth: int) -> Schema:
    pool = [*WORDS, 0, 1, -3, 2.5, 1.0, True, None, [1, "x"], {"a": 1}, {}, []]
    if rng.random() < 0.3:
        return {"const": rng.choice(pool)}
    return {"enum": rng.sample(pool, rng.randint(1, 5))}


def _number(rng: random.Random, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": rng.choice(["integer", "number", "integer"])}
    for keyword in ("minimum", "exclusiveMinimum"):
        if rng.random() < 0.3:
            schema[keyword] = rng.choice([-20, -1, 0, 0.5, 3, -2.75])
    for keyword in ("maximum", "exclusiveMaximum"):
        if rng.random() < 0.3:
            schema[keyword] = rng.choice([0, 1, 7, 10.25, 100, 12345678901234567890])
    if rng.random() < 0.2:
        schema["multipleOf"] = rng.choice([1, 2, 3, 7, 10])
    return schema


def _string(rng: random.Random, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "string"}
    if rng.random() < 0.4:
        schema["minLength"] = rng.randint(0, 4)
    if rng.random() < 0.4:
        schema["maxLength"] = rng.randint(0, 40)
    if rng.random() < 0.4:
        schema["pattern"] = rng.choice(PATTERNS)
    elif rng.random() < 0.3:
        schema["format"] = rng.choice(FORMATS)
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    schema: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.7:
        schema["items"] = random_schema(rng, depth - 1)
    if rng.random() < 0.3:
        schema["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.4:
        schema["minItems"] = rng.randint(0, 3)
    if rng.random() < 0.4:
        schema["maxItems"] = rng.randint(0, 5)
    return schema


def _object(rng: random.Random, depth: int) -> Schema:
    keys = rng.sample(KEYS, rng.randint(0, 4))
    schema: dict[str, Any] = {"type": "object"}
    if keys:
        schema["properties"] = {key: random_schema(rng, depth - 1) for key in keys}
    if rng.random() < 0.6:
        schema["required"] = sorted({*rng.sample(KEYS, rng.randint(0, 2)), *keys[:1]})
    if rng.random() < 0.4:
        schema["additionalProperties"] = rng.choice([False, True, random_schema(rng, depth - 1)])
    if rng.random() < 0.15:
        schema["patternProperties"] = {rng.choice(["^n", "x$", "a"]): random_schema(rng, depth - 1)}
    if rng.random() < 0.15:
        schema["propertyNames"] = {"maxLength": rng.randint(1, 6)}
    if rng.random() < 0.15:
        schema["minProperties"] = rng.randint(0, 3)
    if rng.random() < 0.15:
        schema["maxProperties"] = rng.randint(0, 4)
    if rng.random() < 0.1:
        schema["dependentRequired"] = {rng.choice(KEYS): rng.sample(KEYS, 2)}
    if rng.random() < 0.05:
        schema["dependentSchemas"] = {rng.choice(KEYS): random_schema(rng, depth - 1)}
    return schema


def _mixed(rng: random.Random, depth: int) -> Schema:
    """Keywords of several types, without a type or with a list of them."""
    schema = _string(rng, depth) | _array(rng, depth) | _object(rng, depth) | _number(rng, depth)
    del schema["type"]
    kept = {key: schema[key] for key in rng.sample(list(schema), min(len(schema), 3))}
    if rng.random() < 0.5:
        kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
        kept["type"] = rng.sample(kinds, rng.randint(1, 3))
    return kept


def _combined(rng: random.Random, depth: int) -> Schema:
    schema = random_schema(rng, depth - 1)
    schema = dict(schema) if isinstance(schema, dict) else {}
    several = [random_schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    keyword = rng.choice(["allOf", "anyOf", "anyOf", "oneOf", "not", "if", "tagged"])
    if keyword == "tagged":
        schema["oneOf"] = [
            {
                "type": "object",
                "properties": {"kind": {"const": word}, "a": one},
                "required": ["kind"],
            }
            for word, one in zip(WORDS, several, strict=False)
        ]
    elif keyword == "not":
        schema["not"] = rng.choice(
            [{"type": "string"}, {"enum": ["red", 1, None]}, {"required": ["a"]}, {"pattern": "^a"}]
        )
    elif keyword == "if":
        schema["if"] = rng.choice([{"required": ["a"]}, {"type": "string"}, {"minimum": 3}])
        schema["then"] = several[0]
        schema["else"] = several[-1]
    else:
        schema[keyword] = several
    return schema
