"""The command line, option by option. A new one is a promise, so it is a decision."""

import pytest
import typer.main
from typer.core import TyperCommand, TyperGroup

from deepinfer.__main__ import app
from tests.architecture.tree import ROOT

ENGINE = (
    *("--device", "--dtype", "--weight-dtype", "--act-quant", "--load-format"),
    *("--expert-shard", "--layers", "--engram-memory", "--max-model-len"),
    *("--max-num-seqs", "--max-num-batched-tokens", "--kv-cache-bytes"),
    *("--gpu-memory-utilization", "--async-scheduling", "--batch-invariant", "--enforce-eager"),
    "--num-threads",
    *("--replay", "--keep-tokens", "--enable-prefix-caching", "--prefix-replay"),
    *("--kv-host-bytes", "--kv-disk-dir", "--kv-disk-bytes"),
    *("--draft-schedule", "--num-drafts", "--accept"),
)
COMMANDS = {
    "generate": [
        *("PROMPTS", "--model", "--file", "--max-tokens", "--temperature", "--top-p", "--top-k"),
        *("--seed", "--ignore-eos", *ENGINE, "--json", "--yes"),
    ],
    "chat": [
        *("MODEL", "--system", "--thinking", "--max-tokens", "--max-thinking-tokens"),
        *("--temperature", "--top-p", "--seed", "--api-key", *ENGINE, "--yes"),
    ],
    "serve": [
        *("MODEL", "--host", "--port", "--served-model-name", "--api-key", "--allow-origin"),
        *("--max-waiting", "--max-waiting-tokens", "--max-body-bytes", "--drain-s"),
        *("--log-prompts", "--official-sampling", "--seed", *ENGINE, "--yes"),
    ],
    "inspect": ["FOLDER"],
    "tiny": ["FOLDER", "--seed"],
    "selftest": ["--model", "--device"],
    "eval": ["MODEL", "--quick", "--drafts", *ENGINE, "--json", "--yes"],
    "bench": [
        *("WHAT", "--model", "--workload", "--url", "--streams", "--requests", "--input-words"),
        *("--api-key", "--pid", "--toy", "--input-len", "--output-len", "--batch"),
        *(
            "--temperature",
            "--top-p",
            "--top-k",
            "--seed",
            "--cold",
            "--ranks",
            "--rows",
            "--sweep",
            "--skew",
            "--repeats",
        ),
        *(*ENGINE, "--json"),
    ],
    "cache": ["WHAT", "FOLDER"],
    "plan": ["FOLDER", "--memory", "--context", "--batch", "--dtype"],
}
GLOBAL = ["--version", "--log-level"]


def options(command: TyperCommand | TyperGroup) -> list[str]:
    """Options by their spelling, arguments by their name in capitals."""
    return [
        name
        for parameter in command.params
        for name in (
            parameter.opts if parameter.opts[0].startswith("-") else [parameter.opts[0].upper()]
        )
    ]


def program() -> TyperGroup:
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def test_commands() -> None:
    """A command comes or goes by accident."""
    assert list(program().commands) == list(COMMANDS)
    assert options(program()) == GLOBAL


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of(name: str) -> None:
    """An option comes or goes by accident, or changes its spelling under its users."""
    assert options(program().commands[name]) == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_explains_itself(name: str) -> None:
    """`--help` shows a name and nothing else."""
    command = program().commands[name]
    assert command.help
    assert all(getattr(parameter, "help", None) for parameter in command.params)


def test_readme_shows_every_option() -> None:
    """The table in README.md misses an option, or shows one that is gone."""
    table = (ROOT / "README.md").read_text()
    shown = {word for row in table.splitlines() if row.startswith("| ") for word in words(row)}
    real = {option for names in COMMANDS.values() for option in names if option.startswith("--")}
    assert {word for word in shown if word.startswith("--")} == real | set(GLOBAL)


def words(row: str) -> list[str]:
    """The words of a table row, without punctuation."""
    return row.replace("`", " ").replace(",", " ").replace("|", " ").replace("[", " ").split()
