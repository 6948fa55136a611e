"""`deepinfer eval`: a random model gets what it deserves, and a right one would get all."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepinfer import LLM, SamplingParams
from deepinfer.model.batch import FreshStore, make_batch
from deepinfer.model.draft import DraftStore, draft_batch
from deepinfer.model.network import Network
from deepinfer.recipe.message import ParsedMessage
from deepinfer.tools import eval_run
from deepinfer.tools.eval import (
    Plan,
    compared,
    held_out_text,
    main,
    replay_lines,
    with_replay,
)
from deepinfer.tools.eval_examples import Example, Task
from deepinfer.tools.eval_judge import is_right
from deepinfer.tools.eval_network import (
    drafts,
    engram_off,
    long_attention_off,
    network_of,
    replay_on,
)
from deepinfer.tools.eval_run import answer, cut, draw_cases, losses
from deepinfer.tools.eval_structured import CALL, JSON
from deepinfer.tools.eval_tasks import COPY, SUM

KEEP = 22  # of bounded replay: the least for the toy's window
Switch = Callable[[Network], AbstractContextManager[None]]
SMALL = Plan(cases=1, long_cases=1, fact_tokens=120, passages=2, passage_tokens=40, drafted=1)


@pytest.fixture(scope="module")
def llm(tiny_dir: Path) -> Iterator[LLM]:
    with LLM(tiny_dir, device="cpu", dtype="float32", max_num_seqs=8, keep_tokens=KEEP) as made:
        yield made


@pytest.mark.slow
def test_random_model_knows_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure is written down and not measured: a model of noise is praised."""
    monkeypatch.setattr("deepinfer.tools.eval.QUICK", SMALL)
    shown: list[str] = []
    assert main(llm, quick=True, as_lines=False, show=shown.append) == 0
    (text,) = shown
    lines = {line["name"]: line for line in json.loads(text)["lines"]}
    shares = [line for name, line in lines.items() if line["unit"] == "%" and "worse" not in name]
    assert len(shares) == 7
    assert all(line["value"] == 0 and line["high"] > 60 for line in shares)
    assert lines["perplexity of held-out text"]["value"] > 200
    assert lines["worse: all abilities with compact replay"]["value"] == 0
    assert next(line for name, line in lines.items() if "drafts" in name)["value"] < 1


@pytest.mark.parametrize("task", [SUM, JSON, pytest.param(CALL, marks=pytest.mark.slow)])
def test_right_answer_is_seen(llm: LLM, task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """No model could pass: the wanted answer, said token by token, is cut or judged wrong."""
    examples = draw_cases(task, 1 if task is CALL else 3)
    texts = [_as_written(example) for example in examples]
    scripts = iter(texts)

    def forced(**fields: int) -> SamplingParams:
        ids = llm.get_tokenizer().encode(next(scripts), add_bos=False, allow_control=True)
        golden = [*ids, llm.get_tokenizer().eos_id]
        assert len(golden) <= fields["max_tokens"]
        return SamplingParams(golden_token_ids=golden, **fields)

    monkeypatch.setattr(eval_run, "SamplingParams", forced)
    assert all(is_right(one.example, one.message) for one in answer(llm, examples))


def _as_written(example: Example) -> str:
    if not example.answer.calls:
        return str(example.answer.content)
    (call,) = example.answer.calls
    arguments = "".join(
        f'<｜DSML｜ parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value)}</｜DSML｜ parameter>\n"
        for key, value in json.loads(call.arguments).items()
    )
    return (
        f'\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="{call.name}">\n{arguments}'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )


def test_cases_differ_and_stay(llm: LLM) -> None:
    """The same question counts twice, or another run asks other questions."""
    cases = draw_cases(SUM, 200)
    assert len({str(case.messages) for case in cases}) == 200
    assert draw_cases(SUM, 200) == cases


def test_losses_are_the_networks(llm: LLM) -> None:
    """Perplexity leaves out tokens, or is of others than the text's."""
    (passage,) = cut(llm, held_out_text(Path("nowhere")), 1, 30)
    ids = torch.tensor([passage])
    with torch.inference_mode():
        logits = network_of(llm)(ids)[0, :-1].log_softmax(-1)
    expected = -logits.gather(1, ids[0, 1:, None]).mean()
    assert losses(llm, [passage]) == pytest.approx([float(expected)], abs=1e-4)


@pytest.mark.parametrize("switch", [engram_off, long_attention_off])
def test_switch_changes_and_ends(llm: LLM, switch: Switch) -> None:
    """A part is switched off in name only, or stays off for who comes next."""
    passages = cut(llm, held_out_text(Path("nowhere")), 1, 60)
    before = losses(llm, passages)
    with pytest.raises(ZeroDivisionError), switch(network_of(llm)):
        changed = losses(llm, passages)
        raise ZeroDivisionError
    assert changed != before
    assert losses(llm, passages) == before


def test_replay_changes_long_prompts_and_ends(llm: LLM) -> None:
    """Replay is on in name only, changes what it should keep, or stays on for who comes next."""
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=1)
    prompts = [list(range(5, 5 + length)) for length in (KEEP, 60)]

    def said() -> list[object]:
        outputs = llm.generate(prompt_token_ids=prompts, sampling_params=params)
        return [output.logprobs for output in outputs]

    before = said()
    with pytest.raises(ZeroDivisionError), replay_on(llm) as keep_tokens:
        assert keep_tokens == KEEP
        changed = said()
        raise ZeroDivisionError
    assert changed[0] == before[0]
    assert changed[1] != before[1]
    assert said() == before


def test_only_long_prompts_are_asked_again(llm: LLM) -> None:
    """An answer with replay is counted for another case, or short prompts are paid for twice."""
    copy = replace(COPY, sizes=(3, 6))
    answered = {"sums": answer(llm, draw_cases(SUM, 2)), "copies": answer(llm, draw_cases(copy, 6))}
    again = with_replay(llm, answered)
    asked = []
    for name, cases in answered.items():
        for one, other in zip(cases, again[name], strict=True):
            assert one.example == other.example
            asked.append(one is not other)
            assert asked[-1] == (len(one.prompt_ids) > KEEP)
    assert set(asked) == {False, True}


def test_replay_has_no_line_where_it_is_on(llm: LLM) -> None:
    """A model is compared with itself, and replay seems to cost nothing."""
    with replay_on(llm):
        assert not list(replay_lines(llm, SMALL, {"sums": answer(llm, draw_cases(SUM, 1))}))


def test_one_token_has_no_entry_of_two(llm: LLM) -> None:
    """Switching entries off changes the window, too."""
    network, ids = network_of(llm), torch.tensor([[7]])
    attention = network.layers[2].attn
    assert attention.plan.ratio == 2
    seen: list[torch.Tensor] = []
    hook = attention.register_forward_hook(lambda module, given, result: seen.append(result))
    with torch.inference_mode():
        # Up to this layer all is window, and here one token makes no entry yet.
        network(ids)
        with long_attention_off(network):
            network(ids)
    hook.remove()
    assert torch.equal(*seen)


def test_drafts_are_counted(llm: LLM) -> None:
    """The leading drafts are counted against other places than they were made for."""
    network, start = network_of(llm), 12
    ids = torch.arange(40) % 97 + 10
    with torch.inference_mode():
        hidden = network.run(make_batch(network.setup.config, ids[None]), FreshStore())
        anchor = torch.tensor([start])
        rows = draft_batch(network.setup.config, ids[anchor], anchor, torch.zeros(1).long(), 40)
        main_kv = network.draft.main_kv(hidden.features, torch.arange(40))
        out = network.draft.run(network.embed(rows.token_ids), rows, DraftStore(main_kv))
        pick = lambda logits, _: logits.argmax(-1)  # noqa: E731
        said = network.draft.propose(out[None], ids[anchor], network.head, pick).token_ids[0]
    for num_right in (0, 2, 5):
        changed = ids.clone()
        changed[start + 1 : start + 1 + num_right] = said[:num_right]
        if num_right < 5:
            changed[start + 1 + num_right] = (said[num_right] + 1) % 512
        first = drafts(network, changed.tolist(), start)[0]
        assert first.num_leading == num_right
        assert first.came == ([True] * num_right + [False])[:5]
        assert len(first.said) == len(first.came)
    assert len(drafts(network, ids.tolist(), start)) == 40 - 5 - start


def test_short_answer_has_no_drafts(llm: LLM) -> None:
    """An answer without room for a block ends an evaluation."""
    assert drafts(network_of(llm), list(range(12)), 9) == []


def test_comparison_is_case_by_case(llm: LLM) -> None:
    """The pairs of a comparison are not the same cases, or a loss shows as a gain."""
    wrong = answer(llm, draw_cases(SUM, 4))
    right = [
        one._replace(message=ParsedMessage(one.example.answer.content, finish_reason="stop"))
        for one in wrong
    ]
    assert [line.value for line in compared({"sums": wrong}, {"sums": wrong})] == [0, 0]
    mixed = [*right[:3], wrong[3]]
    line, total = compared({"sums": right}, {"sums": mixed})
    assert (line.value, total.value, total.num_cases) == (25, 25, 4)
