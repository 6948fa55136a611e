"""Lets a model answer examples and read text, through the engine.

Knows `LLM` and the recipe. Does not know the tasks, or what an answer is worth.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Final, NamedTuple
from uuid import uuid4

from deepinfer.entrypoints.llm import LLM
from deepinfer.front.chat import Chat, chat_output, new_answers, prepare_chat
from deepinfer.outputs import RequestOutput
from deepinfer.recipe.message import ParsedMessage
from deepinfer.sampling_params import SamplingParams
from deepinfer.tools.eval_examples import Example, Task

# An answer may be so much longer than the wanted one before it is cut: it is wrong by then.
_SLACK: Final = 1.2
_MORE_TOKENS: Final = 12


class Answered(NamedTuple):
    """An example, what the model answered, and the tokens of both."""

    example: Example
    message: ParsedMessage
    prompt_ids: list[int]
    answer_ids: list[int]


def draw_cases(task: Task, num_cases: int) -> list[Example]:
    """Held-out examples, no two with the same question, the same in every run."""
    rng, found = Random(f"eval {task.name} {task.sizes}"), dict[str, Example]()
    while len(found) < num_cases:
        example = task.draw(rng, "held_out")
        found.setdefault(str(example.messages), example)
    return list(found.values())


def asked(llm: LLM, example: Example) -> Chat:
    """The example as a prompt, without the answer."""
    tokenizer, limit = llm.get_tokenizer(), llm.options.max_model_len
    wanted = _wanted_tokens(llm, example)
    params = SamplingParams(temperature=0, max_tokens=int(wanted * _SLACK) + _MORE_TOKENS)
    chat = prepare_chat(example.messages, params, tokenizer, limit, **example.options)
    # response_format shapes the prompt; enforced, every answer would be valid.
    return replace(chat, params=params)


def answer(
    llm: LLM, examples: Sequence[Example], salts: Sequence[str] | None = None
) -> list[Answered]:
    """The model's answers at temperature 0, without a grammar. Raises what a request raises.

    salts: of the prefix cache, one for each; None is a new one for each, so that nothing serves
    that a network computed which was changed meanwhile.
    """
    salts = [uuid4().hex for _ in examples] if salts is None else salts
    chats = [asked(llm, example) for example in examples]
    outputs = llm.generate(
        prompt_token_ids=[chat.prompt_ids for chat in chats],
        sampling_params=[
            replace(chat.params, cache_salt=salt) for chat, salt in zip(chats, salts, strict=True)
        ],
    )
    return [
        Answered(example, message_of(llm, chat, output), chat.prompt_ids, output.token_ids)
        for example, chat, output in zip(examples, chats, outputs, strict=True)
    ]


def long_again(
    answered: Mapping[str, Sequence[Answered]],
    num_tokens: int,
    ask: Callable[[list[Example]], list[Answered]],
) -> dict[str, list[Answered]]:
    """The same cases, those whose prompts have more than `num_tokens` as `ask` answers them now."""
    every = chain.from_iterable(answered.values())
    again = iter(ask([one.example for one in every if len(one.prompt_ids) > num_tokens]))
    return {
        name: [next(again) if len(one.prompt_ids) > num_tokens else one for one in cases]
        for name, cases in answered.items()
    }


def losses(llm: LLM, passages: Sequence[Sequence[int]]) -> list[float]:
    """Mean negative log-likelihood of each passage's tokens but the first, in nats."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    found = []
    for output in llm.generate(prompt_token_ids=passages, sampling_params=params):
        if output.error is not None:
            raise output.error
        known = [one.logprob for one in output.prompt_logprobs or () if one is not None]
        found.append(-sum(known) / len(known))
    return found


def cut(llm: LLM, text: str, num_passages: int, length: int) -> list[list[int]]:
    """The first passages of a text, `length` tokens each, a BOS in front."""
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(text, add_bos=False)
    whole = [part for part in batched_ids(ids, length - 1) if len(part) == length - 1]
    return [[tokenizer.bos_id, *part] for part in whole[:num_passages]]


def batched_ids(ids: Sequence[int], length: int) -> list[Sequence[int]]:
    """Ids cut into parts of `length`; the last may be shorter."""
    return [ids[start : start + length] for start in range(0, len(ids), length)]


def _wanted_tokens(llm: LLM, example: Example) -> int:
    said = example.answer
    parts = [said.content, said.thoughts or ""]
    for call in said.calls:
        # Markup of a call and of each argument, in the released tokens or in bytes.
        parts += [call.name, call.arguments, _MARKUP * (2 + call.arguments.count('": '))]
    tokenizer = llm.get_tokenizer()
    return sum(len(tokenizer.encode(part, add_bos=False)) for part in parts if part)


# About as long as the markup of one argument.
_MARKUP: Final = '<X parameter name="" string="true"></X parameter>\n'


def message_of(llm: LLM, chat: Chat, output: RequestOutput) -> ParsedMessage:
    """What the tokens say, read as LLM.chat reads them."""
    if output.error is not None:
        raise output.error
    answers = new_answers(chat, llm.get_tokenizer())
    for token_id in output.token_ids:
        answers[0].read(token_id, None)
    answers[0].end(output.finish_reason)
    return chat_output(chat, answers, output).message
