"""Structured output put to the test: a regular expression, a JSON schema, and a grammar."""

import json
import re

from deepinfer import LLM, SamplingParams

PHONE = r"\+[1-9][0-9]{1,2} [0-9]{3} [0-9]{4}"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
SUM = 'root ::= number (" + " number){1,3} " = " number\nnumber ::= [1-9] [0-9]{0,2}'


def check_structured_output(llm: LLM) -> list[str]:
    """What went wrong, a line each."""
    cases = {"regex": ("regex", PHONE), "JSON": ("json", PERSON), "EBNF": ("ebnf", SUM)}
    params = [
        SamplingParams(max_tokens=200, seed=0, so_args={"schema_type": kind, "schema": schema})
        for kind, schema in cases.values()
    ]
    faults = []
    for name, result in zip(cases, llm.generate(["Answer:"] * len(cases), params), strict=True):
        text = "" if result.error else result.text
        print(f"{name}: {result.error or text!r}")
        if result.error or result.finish_reason != "stop" or not _obeys(name, text):
            faults.append(f"{name}: {result.error or f'{text!r} ({result.finish_reason})'}")
    return faults


def _obeys(name: str, text: str) -> bool:
    if name == "JSON":
        person = json.loads(text)
        return set(person) == {"name", "age"} and isinstance(person["age"], int)
    pattern = PHONE if name == "regex" else r"\d+( \+ \d+){1,3} = \d+"
    return re.fullmatch(pattern, text) is not None
