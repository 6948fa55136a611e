"""The command line from outside: what it prints where, its exit status, and never a trace."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import deepinfer
from deepinfer import SamplingParams
from deepinfer.__main__ import main
from deepinfer.sampling_params import MAX_TOKENS

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Result]
Options = tuple[object, ...]
Patch = pytest.MonkeyPatch


@pytest.fixture
def run(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line in this process, with nothing on standard input."""
    for name in ("DEEPINFER_HF_MODEL_DIR", "DEEPINFER_ACCELERATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("deepinfer.engine.default_model.demo_folder", lambda: None)
    # A message is not cut in two by a narrow terminal.
    monkeypatch.setenv("COLUMNS", "300")

    def call(*arguments: object) -> Result:
        monkeypatch.setattr("sys.argv", ["deepinfer", *map(str, arguments)])
        try:
            code = main()
        except SystemExit as end:
            assert end.code is None or isinstance(end.code, int)
            code = end.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Result(code, out, err)

    return call


@pytest.fixture
def short(tiny_dir: Path) -> Options:
    """Options for a short answer of the toy."""
    return ("--model", tiny_dir, "--device", "cpu", "--max-tokens", 3, "--seed", 1)


def test_version(run: Run) -> None:
    """A report of a fault cannot say which version it is about."""
    assert run("--version") == (0, f"deepinfer {deepinfer.__version__}\n", "")


@pytest.mark.parametrize("command", [(), ("generate",), ("inspect",), ("tiny",), ("selftest",)])
def test_help(command: tuple[str, ...], run: Run) -> None:
    """Help is an error, or goes to the wrong stream."""
    code, out, err = run(*command, "-h")
    assert (code, err) == (0, "")
    assert "Usage" in out


def test_generate(run: Run, short: Options) -> None:
    """The answer is mixed with messages, or differs between two runs with one seed."""
    first = run("generate", "The lamp", *short, "--dtype", "float32")
    assert first.code == 0
    assert first.err == ""
    assert first.out.endswith("\n")
    assert len(first.out) > 1
    assert run("generate", "The lamp", *short, "--dtype", "float32") == first


def test_generate_json(run: Run, short: Options) -> None:
    """A program that reads JSON lines finds anything else on standard output."""
    code, out, err = run("generate", "The lamp", "", "The sea", *short, "--json")
    assert (code, err) == (1, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["prompt"] for record in records] == ["The lamp", "", "The sea"]
    assert [len(record.get("token_ids", [])) for record in records] == [3, 0, 3]
    assert records[1]["error"]["field"] == "prompt"
    with deepinfer.LLM(str(short[1]), device="cpu") as llm:
        outputs = llm.generate(["The lamp", "The sea"], SamplingParams(seed=1, max_tokens=3))
    assert [records[0]["token_ids"], records[2]["token_ids"]] == [o.token_ids for o in outputs]


def test_sources_of_prompts(run: Run, short: Options, tmp_path: Path, monkeypatch: Patch) -> None:
    """The same prompt from an argument, a file or standard input gives another text."""
    (tmp_path / "prompts.txt").write_text("The lamp\n\nThe sea\n", encoding="utf-8")
    by_argument = run("generate", "The lamp", "The sea", *short, "--json")
    assert by_argument.code == 0
    assert run("generate", "--file", tmp_path / "prompts.txt", *short, "--json") == by_argument
    monkeypatch.setattr("sys.stdin", io.StringIO("The lamp"))
    by_stdin = run("generate", *short, "--json")
    assert by_stdin.out == by_argument.out.splitlines(keepends=True)[0]


def test_refused_prompt(run: Run, short: Options) -> None:
    """O05: a refused prompt gives status 0, or its reason stands among the answers."""
    for prompts in (("",), ()):  # without any, an empty standard input is the prompt
        code, out, err = run("generate", *prompts, *short)
        assert (code, out.strip()) == (1, "")
        assert err.startswith("error: prompt 1: prompt: the prompt is empty\n  hint: ")


REFUSED = {
    ("--temperature", "temperature"): ("nan", "-1"),
    ("--top-p", "top_p"): ("0", "1.5"),
    ("--top-k", "top_k"): ("-2",),
    ("--max-tokens", "max_tokens"): ("0",),
    ("--seed", "seed"): (str(2**64),),
    ("--max-model-len", "max_model_len"): ("1", "5000"),
    ("--num-threads", "num_threads"): ("0",),
    ("--device", "device"): ("gpu", "npu"),
    ("--dtype", "dtype"): ("fp32",),
    ("--weight-dtype", "weight_dtype"): ("fp8",),
    ("--act-quant", "act_quant"): ("on",),
    ("--model", "model"): ("no-such-folder", "../no-such-folder", "~nobody-of-this-name/model"),
    ("--file", "--file"): ("no-such-file",),
}


@pytest.mark.parametrize(
    ("option", "field", "value"), [(*names, v) for names, vs in REFUSED.items() for v in vs]
)
def test_refused_values(option: str, field: str, value: str, run: Run, short: Options) -> None:
    """A value that cannot be honoured gives a trace, status 0 or 1, or a message without a name."""
    prompts = () if option == "--file" else ("x",)
    code, out, err = run("generate", *prompts, *short, option, value)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {field}: ")
    assert "\n  hint: " in err


WRONG_CALLS = """; genrate x; generate x --temprature 1; generate x --temperature hot; tiny;
inspect; generate x --max-tokens 1.5; generate x --seed"""


@pytest.mark.parametrize("call", WRONG_CALLS.split(";"))
def test_wrong_calls(call: str, run: Run) -> None:
    """A call that makes no sense does something, or ends with the status of a failed prompt."""
    assert run(*call.split()).code == 2


def test_no_prompt(run: Run, short: Options, monkeypatch: Patch) -> None:
    """Without a prompt at a terminal, the program loads for minutes, or waits in silence."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    code, out, err = run("generate", "--model", "no-such-folder")
    assert (code, out) == (2, "")
    assert err.startswith("error: PROMPT: no prompt")


@pytest.mark.parametrize(
    "stdin",
    [None, io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8")],
    ids=["none", "latin"],
)
def test_odd_standard_input(stdin: Any, run: Run, short: Options, monkeypatch: Patch) -> None:
    """A standard input that is closed, or in another encoding, gives a trace."""
    monkeypatch.setattr("sys.stdin", stdin)
    code, out, err = run("generate", *short)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_output_in_any_encoding(
    encoding: str, run: Run, short: Options, monkeypatch: Patch
) -> None:
    """A terminal or a pipe that has not every character ends the program in the middle."""
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stdout)
    # Half a character: what an argument in another encoding becomes.
    code, _, err = run("generate", "caf\udce9", "大海", *short, "--temperature", 9)
    assert code == 1
    assert err.startswith("error: prompt 1: prompt: ")
    assert err.count("error:") == 1
    stdout.flush()
    assert b"[2/2] " in stdout.buffer.getvalue()  # type: ignore[attr-defined]


def test_reader_that_went_away(run: Run, short: Options, monkeypatch: Patch) -> None:
    """`deepinfer generate ... | head -1` ends in a trace."""

    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("sys.stdout", Closed())
    code, _, err = run("generate", "The lamp", *short)
    assert code == 1
    assert err == ""


def test_interrupted(run: Run, short: Options, monkeypatch: Patch) -> None:
    """Ctrl-C shows a trace, or passes for success."""

    def interrupt(*_args: object, **_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("deepinfer.tools.generate.generate", interrupt)
    assert run("generate", "The lamp", *short).code != 0


def test_refused_environment(run: Run, monkeypatch: Patch, tiny_dir: Path) -> None:
    """A setting that is not honoured is ignored."""
    monkeypatch.setenv("DEEPINFER_FORCE_LOAD_BALANCE", "1")
    code, out, err = run("generate", "x", "--model", tiny_dir)
    assert (code, out) == (2, "")
    assert err.startswith("error: environment DEEPINFER_FORCE_LOAD_BALANCE: ")


def test_warnings_go_to_standard_error(run: Run, short: Options, monkeypatch: Patch) -> None:
    """A warning stands in the text that a program reads."""
    expected = run("generate", "x", *short)
    monkeypatch.setenv("DEEPINFER_GC_INTERVAL_STEP", "5")
    code, out, err = run("generate", "x", *short)
    assert (code, out) == expected[:2]
    assert err.startswith("warning: environment DEEPINFER_GC_INTERVAL_STEP")


@pytest.fixture
def calls(monkeypatch: Patch) -> dict[str, Any]:
    """What the command line asks of the rest; nothing is loaded."""
    seen: dict[str, Any] = {}

    def make(model: str | None, **options: Any) -> str:
        seen.update(model=model, options=options)
        return "llm"

    def generate(llm: str, prompts: list[str], params: SamplingParams, *, as_json: bool) -> int:
        assert llm == "llm"
        seen.update(prompts=prompts, params=params, as_json=as_json)
        return 0

    monkeypatch.setattr("deepinfer.entrypoints.llm.LLM", make)
    monkeypatch.setattr("deepinfer.tools.generate.generate", generate)
    return seen


# A value for each option of the engine.
ENGINE = """device cpu, dtype float32, weight_dtype bfloat16, act_quant fp8, load_format dummy,
expert_shard 1/2, layers 0:3, engram_memory host, max_model_len 99, max_num_seqs 3,
max_num_batched_tokens 77, kv_cache_bytes 1000, gpu_memory_utilization 0.5, async_scheduling True,
batch_invariant False, enforce_eager True, num_threads 2, replay compact, keep_tokens 150,
enable_prefix_caching False, prefix_replay bounded, kv_host_bytes 5, kv_disk_dir here, kv_disk_bytes
6, draft_schedule confidence, num_drafts 3, accept rejection"""


def test_every_option_arrives(run: Run, calls: dict[str, Any]) -> None:
    """An option is accepted and dropped."""
    engine = dict(one.split() for one in ENGINE.split(","))
    words = "generate a b --model m --max-tokens 7 --temperature 0.5 --top-p 0.25 --top-k 9".split()
    words += ["--seed", "-4", "--ignore-eos", "--json", "--yes"]
    for name, value in engine.items():
        option = name.replace("_", "-")
        flags = {"True": [f"--{option}"], "False": [f"--no-{option}"]}
        words += flags.get(value, [f"--{option}", value])
    assert run(*words).code == 0
    options = calls["options"]
    assert options.pop("may_download_large") is True and options.pop("report")
    assert {name: str(value) for name, value in options.items()} == engine
    assert not any(isinstance(options[name], str) for name in ("num_drafts", "kv_disk_bytes"))
    ranks = {f"{name}_parallel_size" for name in ("data", "context", "expert")}
    assert set(engine) == set(vars(deepinfer.EngineArgs())) - {"seed", *ranks}
    assert (calls["model"], calls["prompts"], calls["as_json"]) == ("m", ["a", "b"], True)
    assert calls["params"] == SamplingParams(
        temperature=0.5, top_p=0.25, top_k=9, seed=-4, max_tokens=7, ignore_eos=True
    )


def test_defaults(run: Run, calls: dict[str, Any]) -> None:
    """A default of the command line differs from that of Python, or agrees to a download."""
    assert run("generate", "a", "--model", "m").code == 0
    assert calls["params"] == SamplingParams(max_tokens=MAX_TOKENS)
    assert calls["as_json"] is False
    options = calls["options"]
    assert options["may_download_large"] is False
    defaults = vars(deepinfer.EngineArgs())
    given = options.keys() - {"may_download_large", "report"}
    assert {name: options[name] for name in given} == {name: defaults[name] for name in given}


def test_limit_of_the_toy(run: Run, calls: dict[str, Any], monkeypatch: Patch) -> None:
    """Random text runs to the end of the context, or a real model stops after a few words."""
    run("generate", "a")
    assert calls["params"].max_tokens == 64
    monkeypatch.setenv("DEEPINFER_HF_MODEL_DIR", "a/real/model")
    run("generate", "a")
    assert calls["params"].max_tokens == MAX_TOKENS
    monkeypatch.delenv("DEEPINFER_HF_MODEL_DIR")
    monkeypatch.setattr("deepinfer.engine.default_model.demo_folder", lambda: Path("demo"))
    run("generate", "a")
    assert calls["params"].max_tokens == MAX_TOKENS


def test_inspect(run: Run, tiny_dir: Path, tmp_path: Path) -> None:
    """An incomplete checkpoint gives status 0, or a complete one does not."""
    for folder, status, verdict in ((tiny_dir, 0, "complete"), (tmp_path, 1, "NOT complete")):
        code, out, _ = run("inspect", folder)
        assert (code, out.endswith(f"verdict: {verdict}\n")) == (status, True)


def test_tiny_then_selftest(run: Run, tmp_path: Path, monkeypatch: Patch) -> None:
    """The commands of the first five minutes do not fit together."""
    monkeypatch.setattr("deepinfer.tools.selftest._LENGTHS", (3,))
    folder = tmp_path / "toy"
    assert run("tiny", folder, "--seed", 3).code == 0
    code, out, err = run("tiny", folder)
    assert (code, out) == (2, "")
    assert err.startswith("error: FOLDER: ")
    assert run("inspect", folder).code == 0
    code, out, _ = run("selftest", "--model", folder)
    assert code == 0
    assert " 0 failed" in out


def test_selftest_that_cannot_start(run: Run, tiny_dir: Path, tmp_path: Path) -> None:
    """N11: a wrong folder or device counts as a failed check, or ends in a trace of torch."""
    for words in (["--model", tmp_path], ["--model", tiny_dir, "--device", "gpu"]):
        assert run("selftest", *words).code == 2


def test_as_a_program(tiny_dir: Path) -> None:
    """What works inside of a test does not as a process: streams, status, torch's own output."""
    found = subprocess.run(
        [sys.executable, "-m", "deepinfer", "generate", "--model", tiny_dir, "--max-tokens", "2"],
        cwd=ROOT,
        env={**os.environ, "DEEPINFER_ACCELERATOR": "cpu", "DEEPINFER_HF_MODEL_DIR": ""},
        input=b"The lamp",
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0
    assert len(found.stdout.removesuffix(b"\n")) > 0
    assert b"Traceback" not in found.stderr
    assert b"RANDOM TOY" not in found.stderr
