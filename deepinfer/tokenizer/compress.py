"""Engram's token map: tokens that read alike share one compressed id (spec 9.1).

Knows tokenizer.json alone. Does not know the hash that uses the ids, nor how unlike two texts must
be: that is exactly what the library's normalizers say, since every hash depends on the count.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, normalizers

from deepinfer.config.model import ModelConfig
from deepinfer.errors import ConfigError
from deepinfer.tokenizer.tokenizer_file import TOKENIZER_FILE, open_tokenizer_json

_REPLACEMENT = "\ufffd"
_STASH = "\ue000"  # carries a text that is one space past the stripping


def build_token_map(tokenizer_json: Path) -> npt.NDArray[np.int32]:
    """Compressed id of every token id: int32 [vocab_len], for ids from 0 to the highest stored.

    Equal keys share a compressed id, numbered by first occurrence in increasing token id. The key
    of a token is its text after normalising: " The" and "the" are one. Two edges, after spec 9.1:

    * Bytes that are no whole character decode to U+FFFD, which would make them all alike, so a
      token with U+FFFD in its text keys on its raw vocabulary string. That string may equal the
      text of another token: byte A1 is spelled "¡" there, and shares its id with the character.
    * An id that no token has decodes to nothing; all such ids share the key "".

    Raises ConfigError for a file that is missing or damaged.
    """
    raw = open_tokenizer_json(tokenizer_json)
    vocab_len = max(raw.get_vocab(with_added_tokens=True).values()) + 1
    # One call for all ids: one call per id would cost more than the decoding itself.
    texts = raw.decode_batch([[i] for i in range(vocab_len)], skip_special_tokens=False)
    normalizer = _key_normalizer()
    compressed_ids: dict[str, int] = {}
    token_map = np.empty(vocab_len, dtype=np.int32)
    for token_id, text in enumerate(texts):
        if _REPLACEMENT in text:
            key = raw.id_to_token(token_id) or text
        else:
            key = normalizer.normalize_str(text) or text
        token_map[token_id] = compressed_ids.setdefault(key, len(compressed_ids))
    return token_map


def check_token_map(token_map: npt.NDArray[np.int32], config: ModelConfig) -> None:
    """Raise ConfigError unless the map has as many distinct ids as config.json counts.

    Every hash multiplier depends on the count, so another one means other rows of the Engram
    tables for every text.
    """
    found = int(token_map.max()) + 1
    if found != config.engram_compressed_vocab_size:
        raise ConfigError(
            f"found {found} distinct compressed ids, expected engram_compressed_vocab_size "
            f"{config.engram_compressed_vocab_size} of config.json",
            where=TOKENIZER_FILE,
            hint="take config.json and tokenizer.json from the same checkpoint",
        )


def _key_normalizer() -> normalizers.Sequence:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _STASH),
            normalizers.Strip(),
            normalizers.Replace(_STASH, " "),
        ]
    )
