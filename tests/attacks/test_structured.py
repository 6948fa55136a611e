"""Structured output at run time: hostile schemas, and whatever else a request asks beside one."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from deepinfer import LLM, RequestError, SamplingParams
from tests.laws.engines import assert_empty

FIELDS = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
        "kind": {"enum": ["red", "green"]},
    },
    "required": ["id", "ok", "kind"],
}
EFFORTS = ("low", "high", "max")
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "Hello"}]
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "fields", "schema": FIELDS}}


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, device="cpu", dtype="float32", max_num_seqs=16, max_model_len=600) as made:
        yield made


@pytest.fixture(autouse=True)
def all_is_back(llm: LLM) -> Iterator[None]:
    yield
    assert_empty(llm._requests.model.engine)


def structured(schema: Any, kind: str = "json", **params: Any) -> SamplingParams:
    asked = {"temperature": 1.5, "max_tokens": 200, "seed": 7} | params
    return SamplingParams(so_args={"schema_type": kind, "schema": schema}, **asked)


def outputs(llm: LLM, params: SamplingParams, prompt: str = "Hello") -> list[Any]:
    (found,) = llm.generate(prompt, params, use_tqdm=False)
    assert found.error is None
    return found.outputs


def assert_fields(text: str) -> None:
    validate(json.loads(text), FIELDS)


def ids_of(llm: LLM, text: str) -> list[int]:
    return llm.get_tokenizer().encode(text, add_bos=False)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
def test_e01_whitespace_has_an_end(seed: int, llm: LLM) -> None:
    """E01: a model that likes blanks fills the answer with them up to the limit."""
    tokenizer = llm.get_tokenizer()
    blanks = [n for n in range(tokenizer.vocab_len) if not tokenizer.token_bytes(n).strip(b" \n\t")]
    bias = {n: 20.0 for n in blanks if tokenizer.token_bytes(n)}
    assert len(bias) >= 3
    (found,) = outputs(llm, structured(FIELDS, logit_bias=bias, seed=seed))
    assert found.finish_reason == "stop"
    assert_fields(found.text)


MALFORMED: list[tuple[str, Any]] = [
    *(("json", text) for text in ("{", "[]", "nul", '{"type": 5}', '{"$ref": "#/x"}', "\ud800")),
    *(("json", {"type": name}) for name in ("strin", "", "int", "Object", "any")),
    *(
        ("json", {"pattern": text})
        for text in ("(", "[z-a]", "(?=x)", "\\1", "a{3,1}", "*a", "\\b")
    ),
    *(("json", {"format": text}) for text in ("", "iri", "regex", "Date")),
    *(("json", {key: -1}) for key in ("minLength", "maxItems", "multipleOf", "required", "enum")),
    *(("regex", text) for text in ("(", ")", "[", "a**", "(?<=a)b", "\\", "(?P<x>a)\\1", "a{,2}{")),
    ("regex", "(((a{1,99}){1,99}){1,99}){1,99}"),
    *(("ebnf", text) for text in ('x ::= "a"', "root ::= [a-", 'root ::= "a', "root ::= root")),
    ("ebnf", 'root ::= a "x"\na ::= root | "y"'),
    ("ebnf", "root ::= b"),
    ("ebnf", "root ::= (" * 400 + ")" * 400),
]


def test_e08_bad_schemas_hurt_nobody(llm: LLM) -> None:
    """E08: a schema that cannot be used ends the engine, or the neighbour's answer."""
    assert len(MALFORMED) >= 40
    alone = llm.generate("The lamp", GREEDY, use_tqdm=False)[0].token_ids
    params = [GREEDY]
    refused = []
    for kind, schema in MALFORMED:
        try:
            params.append(structured(schema, kind))
        except RequestError as error:
            refused.append(error)
    found = llm.generate(["The lamp"] * len(params), params, use_tqdm=False)
    assert found[0].token_ids == alone
    refused += [one.error for one in found[1:]]
    assert len(refused) == len(MALFORMED)
    for error in refused:
        assert error is not None
        assert error.field.startswith("so_args")
        assert error.hint


def test_e09_failed_compile_is_an_error_at_once(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """E09: the compiler raises, and the client waits until its own time is up."""
    failed: Future[Any] = Future()
    failed.set_exception(RequestError("it exploded", field="so_args.schema", hint="none"))
    outputs(llm, structured("a", "regex"))  # the compiler is there now
    compiler = llm._requests.model.engine._grammars._compiler
    monkeypatch.setattr(compiler, "submit", lambda text: failed)
    (found,) = llm.generate("x", structured("b", "regex", n=3), use_tqdm=False)
    assert found.error is not None
    assert found.error.what == "it exploded"
    with pytest.raises(RequestError, match="it exploded"):
        list(llm.stream("x", structured("b", "regex")))


def test_e09_leaving_while_it_compiles(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """E09: a client that leaves during the compile is kept waiting for, and its memory too."""
    outputs(llm, structured("a", "regex"))
    engine = llm._requests.model.engine
    monkeypatch.setattr(engine._grammars._compiler, "submit", lambda text: Future())
    engine.submit("gone", [5, 6], structured("b", "regex", n=2), grammar="x")
    assert engine.has_work
    assert engine.step() == []
    engine.abort("gone")
    assert not engine.has_work


def test_e10_hostile_schemas_are_refused_soon(llm: LLM) -> None:
    """E10: nested alternatives take minutes, and nobody else gets a token meanwhile."""
    schema: Any = {"type": "integer"}
    for depth in range(6):
        kinds = [{"properties": {"k": {"const": n}, f"v{depth}": schema}} for n in range(4)]
        schema = {"oneOf": [{"type": "object", "required": ["k"]} | kind for kind in kinds]}
    counts = "a"
    for _ in range(6):
        counts = f"({counts}){{1,30}}"
    asked = [
        structured(schema),
        structured(counts, "regex"),
        structured({"type": "string", "pattern": f"^{counts}$"}),
        structured({"allOf": [{"pattern": f"^(.*{c}){{9}}.*$"} for c in "abcdefghij"]}),
        structured(f'root ::= {"(" * 9}"a"{"){1,99}" * 9}', "ebnf"),
        GREEDY,
    ]
    start = time.monotonic()
    found = llm.generate(["x"] * len(asked), asked, use_tqdm=False)
    assert time.monotonic() - start < 40
    for one in found[:4]:
        assert one.error is not None
        assert one.error.hint
    # The last but one may be compiled or refused, but not for ever.
    assert found[5].error is None


@pytest.mark.parametrize("inside", [True, False], ids=["legal text", "never text"])
def test_e14_a_stop_token_waits_for_the_end(inside: bool, llm: LLM) -> None:
    """E14: a stop token that is legal inside a string cuts the answer in the middle."""
    (token_id,) = ids_of(llm, "e" if inside else "}")
    schema = {"type": "string", "minLength": 20, "maxLength": 40}
    bias = {token_id: 5.0} | {ids_of(llm, '"')[0]: 4.0}
    params = structured(schema, stop_token_ids=[token_id], logit_bias=bias, max_tokens=300)
    (found,) = outputs(llm, params)
    assert found.finish_reason == "stop"
    validate(json.loads(found.text), schema)


@pytest.mark.parametrize(
    "thinking", [True, False, *(pytest.param(how, marks=pytest.mark.slow) for how in EFFORTS)]
)
def test_e15_e16_thoughts_are_free_and_the_answer_obeys(thinking: Any, llm: LLM) -> None:
    """E15, E16: the grammar holds for the thoughts, or for nothing at all."""
    thoughts = ids_of(llm, " this is no JSON {")
    script = [*thoughts, llm.get_tokenizer().thinking_ids[1]] if thinking else []
    params = SamplingParams(temperature=1.5, max_tokens=200, seed=3, golden_token_ids=script)
    (found,) = llm.chat(
        MESSAGES, params, use_tqdm=False, thinking=thinking, response_format=JSON_FORMAT
    )
    assert_fields(found.message.content)
    assert found.message.reasoning_content == (" this is no JSON {" if thinking else None)
    assert found.message.finish_reason == "stop"
    streamed = [
        type(event).__name__
        for event in llm.stream_chat(
            MESSAGES, params, thinking=thinking, response_format=JSON_FORMAT
        )
    ]
    assert streamed[-1] == "Finished"
    assert ("ReasoningText" in streamed) == bool(thinking)


def test_thoughts_are_limited(llm: LLM) -> None:
    """A model that never stops thinking never answers."""
    for most in (0, 1, 9):
        params = SamplingParams(temperature=1.5, max_tokens=200, seed=5, max_thinking_tokens=most)
        (found,) = llm.chat(MESSAGES, params, use_tqdm=False, response_format=JSON_FORMAT)
        ids = found.output.token_ids
        assert ids.index(llm.get_tokenizer().thinking_ids[1]) <= most
        assert_fields(found.message.content)


MIXTURES: dict[str, dict[str, Any]] = {
    "hot": {"temperature": 20.0},
    "greedy": {"temperature": 0},
    "n": {"n": 4},
    "penalties": {"presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 3.0},
    "filters": {"top_k": 3, "top_p": 0.5, "min_p": 0.2},
    "min_tokens": {"min_tokens": 60},
    "min_tokens beyond": {"min_tokens": 200},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 1},
    "stop strings": {"stop": ['"', ",", "e", "\n", "}"]},
    "included": {"stop": ["}"], "include_stop_str_in_output": True},
    "bias": {"logit_bias": dict.fromkeys(range(40, 60), -100)},
}


@pytest.mark.parametrize("name", MIXTURES)
def test_a_schema_beside(name: str, llm: LLM) -> None:
    """Another parameter of the request wins over the schema, and the answer is no JSON."""
    for found in outputs(llm, structured(FIELDS, **MIXTURES[name])):
        assert found.finish_reason == "stop"
        assert_fields(found.text)


def test_stop_strings_end_only_what_is_complete(llm: LLM) -> None:
    """H01 and E14 together: a stop string cuts a structured text before it is one."""
    (found,) = outputs(llm, structured("[a-c]{4}(x[a-c]{4})*", "regex", stop=["x"]))
    assert (found.text, found.stop_reason) == (found.text[:4], "x")
    assert len(found.text) == 4
    (found,) = outputs(llm, structured("(ab){3}", "regex", stop=["ab", "ba"]))
    assert (found.text, found.stop_reason) == ("ababab", None)


def test_cut_by_the_limit_is_length(llm: LLM) -> None:
    """A cut answer claims to be complete, or the model is driven to close it in a hurry."""
    for most in range(1, 12):
        (found,) = outputs(llm, structured(FIELDS, max_tokens=most))
        assert found.finish_reason == "length"
        assert len(found.token_ids) == most


def test_forced_tokens_that_break_the_grammar(llm: LLM) -> None:
    """A forced token is written over the grammar, and the answer goes on from nowhere."""
    (found,) = outputs(llm, structured("abc", "regex", golden_token_ids=ids_of(llm, "ax")))
    assert found.finish_reason == "error"
    (found,) = outputs(llm, structured("abc", "regex", golden_token_ids=ids_of(llm, "ab")))
    assert (found.text, found.finish_reason) == ("abc", "stop")


def test_rows_without_a_grammar_are_left_alone(llm: LLM) -> None:
    """A mask lands on the neighbour's row."""
    free = SamplingParams(temperature=1.0, max_tokens=30, seed=2, ignore_eos=True)
    prompts = ["The lamp", "x", "One winter", "y"]
    alone = [llm.generate(p, free, use_tqdm=False)[0].token_ids for p in prompts]
    params = [p for _ in prompts for p in (structured(FIELDS), free)]
    found = llm.generate([p for one in prompts for p in (one, one)], params, use_tqdm=False)
    assert [one.token_ids for one in found[1::2]] == alone
    for one in found[::2]:
        assert_fields(one.text)


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 16}, {"kv_cache_bytes": 700_000}])
def test_chunks_and_preemption(options: dict[str, Any], tiny_dir: Path, llm: LLM) -> None:
    """A request that starts again, or whose prompt comes in pieces, loses its place in the text."""
    prompts = [f"{n} " * 60 for n in range(8)]
    params = structured(FIELDS)
    calm = [one.token_ids for one in llm.generate(prompts, params, use_tqdm=False)]
    size = {"max_num_seqs": 8, "max_model_len": 400} | options
    if "max_num_batched_tokens" in options:
        size["max_num_seqs"] = 4
    with LLM(tiny_dir, device="cpu", dtype="float32", **size) as small:
        found = small.generate(prompts, params, use_tqdm=False)
        counters = small._requests.model.engine.scheduler.counters
    assert [one.token_ids for one in found] == calm
    if "kv_cache_bytes" in options:
        assert counters.num_preemptions > 0
