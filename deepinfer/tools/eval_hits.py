"""What a model's answers lose when a prompt's beginning comes from the prefix cache, by bounded
replay.

Every long prompt is read once, and then asked again under the same salt: all its whole blocks are
found, and the last window of them runs again. Knows engines' options; not what an answer is worth.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from uuid import uuid4

from deepinfer.cache.layout import BLOCK_TOKENS
from deepinfer.entrypoints.llm import LLM
from deepinfer.tools.eval_examples import Example
from deepinfer.tools.eval_network import loaded_model
from deepinfer.tools.eval_run import Answered, answer, asked, long_again


@contextmanager
def bounded_hits(llm: LLM) -> Iterator[None]:
    """New requests are served by bounded replay behind a hit, whatever the option says."""
    prefix = loaded_model(llm).engine.scheduler.memory.prefix
    assert prefix is not None, "there is no prefix cache"
    kept, prefix.replay = prefix.replay, "bounded"
    try:
        yield
    finally:
        prefix.replay = kept


def with_hits(llm: LLM, answered: Mapping[str, list[Answered]]) -> dict[str, list[Answered]]:
    """The same cases behind bounded hits. A prompt without a whole block finds nothing, and is not
    asked again."""
    with bounded_hits(llm):
        return long_again(answered, BLOCK_TOKENS, partial(_read_then_answer, llm))


def _read_then_answer(llm: LLM, examples: Sequence[Example]) -> list[Answered]:
    chats = [asked(llm, example) for example in examples]
    salts = [uuid4().hex for _ in examples]
    llm.generate(
        prompt_token_ids=[chat.prompt_ids for chat in chats],
        sampling_params=[
            replace(chat.params, max_tokens=1, cache_salt=salt)
            for chat, salt in zip(chats, salts, strict=True)
        ],
    )
    return answer(llm, examples, salts)
