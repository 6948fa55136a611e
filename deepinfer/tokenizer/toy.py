"""A small tokenizer in the released format, for toy checkpoints: same kinds of tokens, few of them.

Knows the layout of the released vocabulary (specials first, bytes, merges, control tokens last).
Does not know the checkpoint it is made for.
"""

import json
from pathlib import Path
from typing import Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)

from deepinfer.errors import ConfigError
from deepinfer.tokenizer.tokenizer_file import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

BOS: Final = "<｜begin▁of▁sentence｜>"
EOS: Final = "<｜end▁of▁sentence｜>"
PAD: Final = "<｜▁pad▁｜>"
NOISE: Final = "<｜dspark▁noise｜>"
IMAGE: Final = "<｜deepseek_image｜>"

# Spelling, and whether it is flagged special, in the order of their ids; the last has the
# vocabulary's last id. As released, the markers that a reader of answers needs are not special.
CONTROL_TOKENS: Final = (
    ("<｜latest_reminder｜>", True),
    ("｜DSML｜", False),
    (NOISE, True),
    (IMAGE, True),
    ("<｜System｜>", True),
    ("<｜User｜>", True),
    ("<｜Assistant｜>", True),
    ("<think>", False),
    ("</think>", False),
)
_LEADING = (BOS, EOS, PAD)

MIN_VOCAB_SIZE: Final = len(_LEADING) + 256 + len(CONTROL_TOKENS)

# What the merges are learned from: enough English for common words, a little of everything else.
_TEXT = """\
The lighthouse keeper kept two books. In the first book he wrote what the sea had done that day: \
the wind, the height of the waves, the ships that passed and the ships that did not. In the \
second book he wrote what he thought the sea would do tomorrow. Each morning he opened both of \
them side by side and counted the lines that agreed. When most of the lines agreed he was \
pleased, and when they did not he was more pleased still, because then there was something to \
learn.

One winter the lamp began to fail. It would burn for an hour and then go dark for a minute, and \
nobody could say why. The keeper took the lamp apart and laid every part on the table in the \
order in which it came out. He cleaned each part, he measured each part, and he put them all \
together again; and the lamp burned for an hour and went dark for a minute. So he stopped \
looking at the lamp and started looking at the hour. He found that a small cloud of moths came \
in with the tide, crossed the glass, and left again. There had never been anything wrong with \
the light. There had only been something between the light and the people who were looking for \
it.

"How do you know that you are right?" asked the boy who brought the oil. "I do not know it," said \
the keeper, "but I know what I would see if I were wrong, and I have looked for that, and I have \
not seen it. That is the best that anyone can do with a lamp, or with a sum, or with a story that \
somebody tells about the sea." The boy thought about this while he carried the cans up the stairs. \
There were 128 stairs, and he had counted them so many times that he no longer had to count.

Later the boy became the keeper, and he kept three books. The third one was for the questions \
that he could not answer yet: Why is the water warmer in the evening than at noon? Where do the \
moths go when the tide goes out? What is the shortest way to tell a ship that it is safe? He wrote \
one question on each page and left the rest of the page empty, because an empty page is a kind of \
promise. Some of the pages were filled within a week. Some of them are empty to this day, and the \
people who live there now will show them to you if you ask, and will give you a pencil.

for page in pages:
    if page.answer is None:
        print(page.number, page.question)  # still open: 1, 2, 3, 10, 100, 2024

{"wind": "north-west", "height_m": 2.5, "ships": ["Aurora", "Hope"], "lamp": true}

Le café est déjà fermé; der Leuchtturm ist schön; el niño mira el mar. \
灯塔的光照着大海。大海很安静。今日は海が静かです。 Маяк светит всю ночь. 🙂 🌊
"""


def write_toy_tokenizer(folder: Path, vocab_size: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with ids 0 .. vocab_size - 1, none left out.

    In the order of ids: BOS, EOS, PAD, the 256 bytes, merges learned from a text of our own,
    unused placeholders if that text runs out of merges, and `CONTROL_TOKENS`. The same size gives
    the same files, byte for byte.

    Raises ConfigError for a size below `MIN_VOCAB_SIZE`.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(
            f"found {vocab_size}, expected at least {MIN_VOCAB_SIZE}",
            where="vocab_size",
            hint="a toy vocabulary needs every byte and every control token",
        )
    raw = _train(vocab_size - len(CONTROL_TOKENS))
    num_unused = vocab_size - len(CONTROL_TOKENS) - raw.get_vocab_size()
    unused = [(f"<｜place▁holder▁no▁{i}｜>", True) for i in range(num_unused)]
    raw.add_tokens([added_token(spelling, flag) for spelling, flag in (*unused, *CONTROL_TOKENS)])
    assert raw.get_vocab_size() == vocab_size
    write_tokenizer_files(folder, raw.to_str(pretty=True))


def write_tokenizer_files(folder: Path, tokenizer_json: str) -> None:
    """Write tokenizer.json, and tokenizer_config.json with the usual roles beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TOKENIZER_FILE).write_text(tokenizer_json + "\n", encoding="utf-8")
    settings = {
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    text = json.dumps(settings, ensure_ascii=False, indent=2) + "\n"
    (folder / TOKENIZER_CONFIG_FILE).write_text(text, encoding="utf-8")


def toy_control_id(spelling: str, vocab_size: int) -> int:
    """The id that a toy vocabulary of this size gives to one of `CONTROL_TOKENS`."""
    place = [known for known, _ in CONTROL_TOKENS].index(spelling)
    return vocab_size - len(CONTROL_TOKENS) + place


def _train(vocab_size: int) -> Tokenizer:
    """BPE with at most `vocab_size` tokens; fewer if the text has no more pairs to merge."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    raw.post_processor = processors.ByteLevel(trim_offsets=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator([_TEXT], bpe_trainer(vocab_size))
    return raw


def bpe_trainer(vocab_size: int) -> trainers.BpeTrainer:
    """Learns merges after BOS, EOS, PAD and the 256 bytes, `vocab_size` tokens in all."""
    return trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[added_token(spelling, True) for spelling in _LEADING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def added_token(spelling: str, special: bool) -> AddedToken:
    """A token that stands for its spelling as it is."""
    return AddedToken(spelling, special=special, normalized=False)
