"""`deepinfer generate`: prompts in, text out, streamed to whoever reads it."""

import io
import json
import sys
import time
from pathlib import Path
from typing import TextIO

from deepinfer.entrypoints.llm import LLM
from deepinfer.errors import RequestError
from deepinfer.outputs import RequestOutput
from deepinfer.sampling_params import SamplingParams
from deepinfer.tools.terminal import visible


def read_prompts(prompts: list[str], file: Path | None, stdin: TextIO | None) -> list[str]:
    """Prompts from the arguments, or one from each line of `file`, or all of stdin as one.

    Raises RequestError when there is none, or two sources at once.
    """
    if prompts and file is not None:
        raise RequestError(
            "prompts were given as arguments and in a file", field="--file", hint="use one of them"
        )
    if prompts:
        return prompts
    if file is None:
        if stdin is None or stdin.closed or stdin.isatty():
            raise RequestError(
                "no prompt", field="PROMPT", hint='try: deepinfer generate "The quick brown fox"'
            )
        return [_read_all(stdin)]
    try:
        # Only an end of line parts prompts: a text may hold form feeds and such.
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise RequestError(
            f"cannot read {file}: {error.strerror}", field="--file", hint="check the path"
        ) from None
    except UnicodeDecodeError:
        raise RequestError(
            f"{file} is not UTF-8 text", field="--file", hint="save it as UTF-8, one prompt a line"
        ) from None
    found = [line for line in lines if line.strip()]
    if not found:
        raise RequestError(f"{file} has no prompt", field="--file", hint="put one on each line")
    return found


def _read_all(stdin: TextIO) -> str:
    try:
        return stdin.read()
    except UnicodeDecodeError:
        raise RequestError(
            "standard input is not UTF-8 text", field="stdin", hint="convert it to UTF-8"
        ) from None


def generate(llm: LLM, prompts: list[str], params: SamplingParams, *, as_json: bool) -> int:
    """Print a continuation of each prompt; the exit status is 1 if any prompt was refused."""
    # A terminal that cannot show a character gets a sign in its place, not a broken program.
    for out in (sys.stdout, sys.stderr):
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="replace")
    failed = 0
    for number, prompt in enumerate(prompts, 1):
        if len(prompts) > 1 and not as_json:
            print(f"[{number}/{len(prompts)}] {prompt}")
        try:
            if as_json:
                failed += _print_json(llm.generate(prompt, params)[0])
            else:
                _print_stream(llm, prompt, params)
        except RequestError as error:
            print(f"error: prompt {number}: {error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


def _print_stream(llm: LLM, prompt: str, params: SamplingParams) -> None:
    terminal = sys.stdout.isatty()
    start, num_tokens = time.monotonic(), 0
    for piece in llm.stream(prompt, params):
        num_tokens += 1
        sys.stdout.write(visible(piece) if terminal else piece)
        sys.stdout.flush()
    print()
    if terminal:
        took = time.monotonic() - start
        # The last piece is what was held back, not a token.
        print(f"({num_tokens - 1} tokens in {took:.1f} s)", file=sys.stderr)


def _print_json(output: RequestOutput) -> bool:
    """One JSON object on a line; True if the request was refused."""
    record: dict[str, object] = {
        "prompt": output.prompt,
        "prompt_token_ids": output.prompt_token_ids,
    }
    if output.error is None:
        record |= {
            "text": output.text,
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
        }
    else:
        record["error"] = {
            "field": output.error.field,
            "message": output.error.what,
            "hint": output.error.hint,
        }
    # Escaped: a prompt with half a character must not end the program that reports it.
    print(json.dumps(record), flush=True)
    return output.error is not None
