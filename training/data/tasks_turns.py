"""Tasks of several messages: results of tools, talks that remember, and a little Chinese.

Each is a pure function of a random generator, a split and a size, like those of
deepinfer/tools/eval_tasks.py.
"""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from typing import Any, Final

from deepinfer.tools.eval_examples import (
    Answer,
    Example,
    Split,
    Task,
    draw_until,
    draw_words,
    user,
    word_key,
)
from deepinfer.tools.eval_structured import FIELDS, draw_tool, in_words, make_call
from deepinfer.tools.eval_tasks import FACT_SIZES, SUM, draw_fact, draw_sum, fact_text
from deepinfer.tools.eval_words import NAMES

_MOST_QUESTIONS: Final = 10
# A dense text has a fact for every so many tokens, drawn anew for each.
_TOKENS_PER_FACT: Final = (25, 60)
_GREETINGS: Final = ("Hello", "Hi", "Good morning", "Good evening")
_CHINESE: Final = tuple(
    "山 水 风 月 花 鸟 云 雨 雪 江 河 湖 海 天 地 日 星 夜 春 夏 秋 冬 东 西 南 北 人 马 牛 羊 鱼 "
    "门 窗 书 琴 酒 茶 舟 桥 城 楼 树 草 石 金 木 火 土 红 绿 青 白 黑 大 小 高 长 新 老 明".split()
)


def make_tool_result(rng: Random, split: Split, size: int) -> Example:
    """A call was made and its result has come; the answer says the result. size: its fields."""
    asked = make_call(rng, split, 1)
    (call,) = asked.answer.calls
    names = rng.sample(sorted(FIELDS), size)
    result = {name: FIELDS[name][1](rng, split) for name in names}
    messages = (
        *asked.messages,
        _assistant("", calls=[_function(call.id, call.name, call.arguments)]),
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)},
    )
    answer = Answer(f"The result is: {in_words(result)}.")
    return Example("tool_result", messages, answer, options=asked.options, keys=asked.keys)


def make_no_call(rng: Random, split: Split, size: int) -> Example:
    """A sum although there are tools: none of them is called."""
    asked = SUM.make(rng, split, 1)
    drawn = [draw_tool(rng, split) for _ in range(size)]
    tools = list({name: tool for name, tool, _ in drawn}.values())
    keys = (*asked.keys, *(key for _, _, key in drawn))
    options = {"thinking": False, "tools": tools}
    return Example("no_call", asked.messages, asked.answer, options=options, keys=keys)


def make_talk(rng: Random, split: Split, size: int) -> Example:
    """A greeting with a name, `size` small turns, and a question about the beginning."""
    (name,) = draw_words(rng, split, NAMES, 1)
    name, greeting = name.capitalize(), rng.choice(_GREETINGS)
    messages: list[Mapping[str, Any]] = [
        user(f"{greeting}, I am {name}."),
        _assistant(f"{greeting}, {name}. What can I do for you?"),
    ]
    keys = [word_key(name)]
    for _ in range(size):
        asked = SUM.draw(rng, split)
        messages += [*asked.messages, _assistant(asked.answer.content)]
        keys += asked.keys
    messages.append(user("What is my name?"))
    return Example("talk", tuple(messages), Answer(f"Your name is {name}."), keys=tuple(keys))


def make_told(rng: Random, split: Split, size: int) -> Example:
    """Facts told one by one, then asked for; size: how many."""
    facts = {fact.question: fact for fact in (draw_fact(rng, split) for _ in range(size))}
    messages: list[Mapping[str, Any]] = []
    for fact in facts.values():
        messages += [user(f"Remember: {fact.statement}"), _assistant("I will remember it.")]
    wanted = rng.choice(list(facts.values()))
    messages.append(user(wanted.question))
    keys = tuple(fact.key for fact in facts.values())
    return Example("told", tuple(messages), Answer(wanted.answer), keys=keys)


def make_facts_task(count: Callable[[str], int]) -> Task:
    """Several questions about one long text, for a long text with one question teaches little.

    Half of the texts have as many facts as evaluation's, half are dense: a fact that nobody asks
    for is what the others must be told apart from. size: tokens of the text, as `count` has them.
    """

    def make(rng: Random, split: Split, size: int) -> Example:
        dense = max(2, size // rng.randint(*_TOKENS_PER_FACT))
        num_facts = dense if rng.random() < 0.5 else None
        text, facts = fact_text(rng, split, size, count, num_facts)
        asked = rng.sample(facts, rng.randint(1, min(len(facts), _MOST_QUESTIONS)))
        messages: list[Mapping[str, Any]] = [user(f"{text}\n{asked[0].question}")]
        for before, fact in pairwise(asked):
            messages += [_assistant(before.answer), user(fact.question)]
        keys = tuple(fact.key for fact in facts)
        return Example("facts", tuple(messages), Answer(asked[-1].answer), keys=keys)

    return Task("facts", make, FACT_SIZES)


def make_greeting(rng: Random, split: Split, size: int) -> Example:
    """How a talk begins. Its few texts are not split: there is nothing in them to hold out."""
    question, answer = rng.choice(
        (
            ("Hello!", "Hello! What can I do for you?"),
            ("Hi", "Hi! What can I do for you?"),
            ("Who are you?", "I am a small model. I can count, copy, remember and tell stories."),
            ("What can you do?", "I can count, copy, remember, use tools and tell stories."),
            ("Thank you.", "You are welcome."),
            ("How are you?", "I am well. What can I do for you?"),
            ("你好", "你好！"),
            ("你是谁？", "我是一个小模型。"),
        )
    )
    return Example("greeting", (user(question),), Answer(answer))


def make_chinese(rng: Random, split: Split, size: int) -> Example:
    """A sum, or `size` characters to repeat or to turn round, in Chinese."""
    kind = rng.randrange(3)
    if kind == 0:
        a, sign, b, key = draw_sum(rng, split, rng.randint(1, 2))
        word = "加" if sign == "+" else "减"
        result = a + b if sign == "+" else a - b
        question = user(f"{a}{word}{b}等于几？")
        return Example("chinese", (question,), Answer(f"{result}。"), keys=(key,))
    drawn, key = draw_until(
        lambda: [rng.choice(_CHINESE) for _ in range(size)],
        split,
        lambda drawn: f"chinese {''.join(drawn)}",
    )
    text, verb = "".join(drawn), "重复" if kind == 1 else "倒写"
    answer = Answer(text if kind == 1 else text[::-1])
    return Example("chinese", (user(f"请{verb}：{text}"),), answer, keys=(key,))


def _assistant(content: str, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    return message | ({"tool_calls": calls} if calls else {})


def _function(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


TURN_TASKS: Final = (
    Task("tool_result", make_tool_result, (1, 3)),
    Task("no_call", make_no_call, (1, 2)),
    Task("talk", make_talk, (0, 4)),
    Task("told", make_told, (1, 6)),
    Task("greeting", make_greeting, (1, 1)),
    Task("chinese", make_chinese, (2, 12)),
)
