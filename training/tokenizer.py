"""The demo model's vocabulary: byte-level BPE learned from its training data.

The layout is the released one, as in deepinfer/tokenizer/toy.py: BOS, EOS, PAD, the 256 bytes,
merges, control tokens last. Numbers are cut into single digits, so that a sum is done digit by
digit. No token is a held-out word of evaluation's lists: training copies none of them, and a model
copies a token badly that it never saw copied. Such a word is written in pieces, like any word that
nobody thought of.

    python -m training.tokenizer FOLDER
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

from deepinfer.recipe.render import render
from deepinfer.tokenizer.toy import (
    CONTROL_TOKENS,
    added_token,
    bpe_trainer,
    write_tokenizer_files,
)
from deepinfer.tools.eval_examples import of_split
from deepinfer.tools.eval_words import ADJECTIVES, CITIES, NAMES, NOUNS
from training.data.mix import TASKS
from training.data.render import conversation_of
from training.data.text import passages

VOCAB_SIZE: Final = 3072
# Enough of each task to count its words; the markup of tools is long and always the same.
_EXAMPLES_PER_TASK: Final = 700
# So many merges are learned beyond those wanted, to make up for those that are dropped.
_SPARE: Final = 256
HELD_OUT_WORDS: Final = frozenset(
    word.lower()
    for words in (NOUNS, ADJECTIVES, NAMES, CITIES)
    for word in of_split(words, "held_out")
)


def training_texts() -> Iterator[str]:
    """What the merges are learned from: natural text, then prompts and answers of every task.

    Nothing that is held out.
    """
    yield from passages("train")
    for name, task in TASKS.items():
        rng = Random(f"tokenizer {name}")
        for _ in range(_EXAMPLES_PER_TASK):
            # A third of the size: long lists teach no other words than short ones.
            example = task.draw(rng, "train", 1 / 3)
            yield render(conversation_of(example), "v4.1").prompt
            answer = example.answer
            yield answer.content
            yield answer.thoughts or ""


def write_tokenizer(folder: Path, vocab_size: int = VOCAB_SIZE) -> None:
    """Write tokenizer.json and tokenizer_config.json. The same data give the same files."""
    raw = _train(vocab_size - len(CONTROL_TOKENS))
    assert raw.get_vocab_size() == vocab_size - len(CONTROL_TOKENS)
    raw.add_tokens([added_token(spelling, special) for spelling, special in CONTROL_TOKENS])
    write_tokenizer_files(folder, raw.to_str())


def _train(vocab_size: int) -> Tokenizer:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Control tokens' spellings in prompts must not become merges.
            pre_tokenizers.Split(Regex(r"<｜[^｜]*｜>|</?think>|｜DSML｜"), behavior="removed"),
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    raw.train_from_iterator(training_texts(), bpe_trainer(vocab_size + _SPARE))
    raw.model = _without_held_out(raw, vocab_size)
    # What a user spells stays: only while learning it was left out.
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    raw.post_processor = processors.ByteLevel(trim_offsets=False)
    raw.decoder = decoders.ByteLevel()
    return raw


def _without_held_out(raw: Tokenizer, vocab_size: int) -> models.BPE:
    """The first merges of `raw`, without any that spells a held-out word or builds on one."""
    learned = json.loads(raw.to_str())["model"]
    made = {first + second for first, second in learned["merges"]}
    vocab = {token: i for token, i in learned["vocab"].items() if token not in made}
    merges = []
    for first, second in learned["merges"]:
        token = first + second
        if not {first, second} <= set(vocab) or is_held_out(token):
            continue
        if token not in vocab and len(vocab) == vocab_size:
            break
        merges.append((first, second))
        vocab.setdefault(token, len(vocab))
    return models.BPE(vocab=vocab, merges=merges)


def is_held_out(token: str) -> bool:
    """Whether a token, as tokenizer.json spells it, is a held-out word."""
    return token.replace("Ġ", " ").strip().lower() in HELD_OUT_WORDS


def main() -> None:
    """Write the files into a folder."""
    parser = argparse.ArgumentParser(description="Learn the demo model's vocabulary.")
    parser.add_argument("folder", type=Path)
    write_tokenizer(parser.parse_args().folder)


if __name__ == "__main__":
    main()
