"""What a device answers to the tasks of `deepinfer eval`, kept in a file, and two such files
compared case by case: a GPU's against the CPU's.

    python -m tests.kernels.triton.answers ask models/demo --device cuda --out gpu.json
    python -m tests.kernels.triton.answers compare cpu.json gpu.json

Each case has the answer's tokens, by how much the best token led the second at each of them, and
whether the answer is right. The two files may come from two machines.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepinfer.entrypoints.llm import LLM
from deepinfer.outputs import RequestOutput
from deepinfer.tools.eval import QUICK, Plan, tasks
from deepinfer.tools.eval_judge import is_right
from deepinfer.tools.eval_run import asked, draw_cases, message_of

_TOKENS = 64  # of an answer are compared token by token


def ask(llm: LLM, plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """The cases of every ability, answered at temperature 0."""
    drawn = {name: draw_cases(task, num) for name, (task, num) in tasks(llm, plan).items()}
    examples = [example for cases in drawn.values() for example in cases]
    chats = [asked(llm, example) for example in examples]
    outputs = llm.generate(
        prompt_token_ids=[chat.prompt_ids for chat in chats],
        sampling_params=[replace(chat.params, logprobs=2) for chat in chats],
    )
    found = []
    for example, chat, output in zip(examples, chats, outputs, strict=True):
        right = is_right(example, message_of(llm, chat, output))
        found.append({"ids": list(output.token_ids), "leads": _leads(output), "right": right})
    rest = iter(found)
    return {name: [next(rest) for _ in cases] for name, cases in drawn.items()}


def compare(
    first: dict[str, list[dict[str, Any]]], second: dict[str, list[dict[str, Any]]]
) -> tuple[float, float]:
    """Print each ability's points and equal answers; return the share of equal answers of all
    cases, and by how many points the second is worse at the ability where it is most so."""
    equal, leads, worst = 0, [], 0.0
    for name, cases in first.items():
        same = 0
        for one, other in zip(cases, second[name], strict=True):
            ids, others = one["ids"][:_TOKENS], other["ids"][:_TOKENS]
            same += ids == others
            if ids != others:
                pairs = enumerate(zip(ids, others, strict=False))
                parted = next((i for i, (a, b) in pairs if a != b), -1)
                leads.append(one["leads"][parted])
        points = [
            100 * sum(case["right"] for case in of[name]) / len(cases) for of in (first, second)
        ]
        print(
            f"{name}: {points[0]:.1f} and {points[1]:.1f} %, {same} of {len(cases)} answers equal"
        )
        equal, worst = equal + same, max(worst, points[0] - points[1])
    total = sum(map(len, first.values()))
    leads.sort()
    print(f"equal up to {_TOKENS} tokens: {equal} of {total}, {100 * equal / total:.2f} %")
    if leads:
        middle, most = leads[len(leads) // 2], leads[-1]
        print(
            f"where they part, the first's best token led by {middle:.3f} (median), "
            f"{most:.3f} at most"
        )
    return equal / total, worst


def _leads(output: RequestOutput) -> list[float]:
    """By how much the best token led the second, in nats, at each position."""
    leads = []
    for one in output.outputs[0].logprobs or ():
        (_, best), (_, second) = one.top
        leads.append(round(best - second, 4))
    return leads


def main() -> int:
    """Ask or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_subparsers(dest="what", required=True)
    asking = what.add_parser("ask")
    asking.add_argument("model", type=Path)
    asking.add_argument("--device", default="auto")
    asking.add_argument("--out", type=Path, required=True)
    asking.add_argument("--quick", action="store_true")
    comparing = what.add_parser("compare")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    given = parser.parse_args()
    if given.what == "ask":
        with LLM(given.model, device=given.device) as llm:
            given.out.write_text(json.dumps(ask(llm, QUICK if given.quick else Plan())))
        return 0
    share, worse = compare(*(json.loads(f.read_text()) for f in (given.first, given.second)))
    return 0 if share >= 0.95 and worse <= 1.0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
