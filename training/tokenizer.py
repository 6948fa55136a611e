"""The demo model's vocabulary: byte-level BPE learned from its training data.

The layout is the released one, as in deepinfer/tokenizer/toy.py: BOS, EOS, PAD, the 256 bytes,
merges, control tokens last. Numbers are cut into single digits, so that a sum is done digit by
digit.

    python -m training.tokenizer FOLDER
"""

import argparse
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
from training.data.mix import TASKS
from training.data.render import conversation_of
from training.data.text import passages

VOCAB_SIZE: Final = 3072
# Enough of each task to count its words; the markup of tools is long and always the same.
_EXAMPLES_PER_TASK: Final = 400


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
    raw.train_from_iterator(training_texts(), bpe_trainer(vocab_size))
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


def main() -> None:
    """Write the files into a folder."""
    parser = argparse.ArgumentParser(description="Learn the demo model's vocabulary.")
    parser.add_argument("folder", type=Path)
    write_tokenizer(parser.parse_args().folder)


if __name__ == "__main__":
    main()
