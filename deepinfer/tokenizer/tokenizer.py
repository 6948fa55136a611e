"""Text to token ids and back; control tokens are made by our own code, never by a user's text.

Knows the tokenizer's files and the token ids of config.json. Does not know conversations (the
recipe writes them), images, or the model.
"""

from collections.abc import Iterable
from pathlib import Path

import tokenizers

from deepinfer.config.model import ModelConfig
from deepinfer.errors import ConfigError, RequestError
from deepinfer.tokenizer.tokenizer_file import (
    GENERATION_CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    open_tokenizer_json,
    read_generation_eos,
    read_role_spellings,
    token_bytes_by_id,
)

_SAME_CHECKPOINT_HINT = "take config.json and the tokenizer's files from the same checkpoint"


class Tokenizer:
    """Byte-level BPE over a checkpoint's vocabulary. Make it with `load_tokenizer`.

    Attributes: `vocab_len` (highest id in tokenizer.json plus one), `control_ids` (spelling to id
    of every added token), `bos_id`, `eos_id`, `pad_id`; `eos_ids`, all tokens that end an answer,
    whichever of the checkpoint's files names them.

    The 21 image placeholders that spec 2.6 puts at and above the model's vocabulary size are not
    registered: they stand for images, so no text may come to mean one.
    """

    def __init__(
        self,
        raw: tokenizers.Tokenizer,
        config: ModelConfig,
        *,
        bos_id: int,
        eos_id: int,
        pad_id: int,
        eos_ids: Iterable[int] = (),
    ) -> None:
        added = raw.get_added_tokens_decoder()
        self._raw = raw
        self._plain = _without_added_tokens(raw)
        self._inserts_bos = config.tokenizer_compatibility == "release"
        self._model_vocab_size = config.vocab_size
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._bytes = token_bytes_by_id(raw)
        self.vocab_len = len(self._bytes)
        self.control_ids = {token.content: i for i, token in sorted(added.items())}
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.eos_ids = frozenset({eos_id, *eos_ids})
        self.pad_id = pad_id

    @property
    def thinking_ids(self) -> tuple[int, int] | None:
        """The tokens before and after thoughts; None if the tokenizer has none."""
        ids = self.control_ids
        return (ids["<think>"], ids["</think>"]) if {"<think>", "</think>"} <= set(ids) else None

    def encode(self, text: str, *, add_bos: bool = True, allow_control: bool = False) -> list[int]:
        """Token ids of `text`.

        By default the text is a user's: a control token spelled in it is split like any other
        text, so nobody can forge a turn. `allow_control=True` is for prompts our own code wrote.

        `add_bos` puts BOS first unless the ids begin with it already. It acts under "release"
        compatibility, where the engine inserts BOS because tokenizer.json does not; under "native"
        nothing is inserted (spec 2.6).

        Raises RequestError (field "prompt") for text that has no UTF-8 form.
        """
        _check_encodable(text)
        source = self._raw if allow_control else self._plain
        # False: a post-processor in the file would decide about BOS a second time.
        # As a batch of one: other threads run meanwhile, which a plain call would not let them.
        (encoded,) = source.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoded.ids
        if add_bos and self._inserts_bos and ids[:1] != [self.bos_id]:
            return [self.bos_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        `skip_special` leaves out what `is_special`. Raises RequestError (field "token_ids") for an
        id that the model does not have.
        """
        kept = (i for i in ids if not (skip_special and self.is_special(i)))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; a control token stands for its spelling.

        An id of the model that no token has stands for no bytes: a model may sample one, and that
        must not end an answer. Raises RequestError (field "token_ids") for any other id.
        """
        if not 0 <= token_id < self._model_vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary",
                field="token_ids",
                hint=f"ids run from 0 to {self._model_vocab_size - 1}",
            )
        return self._bytes[token_id] if token_id < self.vocab_len else b""

    def is_special(self, token_id: int) -> bool:
        """Whether tokenizer.json flags the id as special: BOS or a role is, `<think>` is not."""
        return token_id in self._special_ids


def load_tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    """Read the tokenizer of a checkpoint folder and hold it against `config`.

    tokenizer_config.json may be absent: then config.json alone says which ids are BOS, EOS and
    PAD. Under "release" compatibility config.json decides PAD in any case; under "native" the
    tokenizer's own PAD holds if it names one (spec 2.6).

    Raises ConfigError for a missing or damaged file, a vocabulary larger than the model's, and
    ids on which the files disagree.
    """
    path = folder / TOKENIZER_FILE
    raw = open_tokenizer_json(path)
    vocab = raw.get_vocab(with_added_tokens=True)
    if (vocab_len := max(vocab.values()) + 1) > config.vocab_size:
        raise ConfigError(
            f"found ids up to {vocab_len - 1}, expected them below vocab_size {config.vocab_size}",
            where=str(path),
            hint=_SAME_CHECKPOINT_HINT,
        )
    config_ids = {
        "bos": config.bos_token_id,
        "eos": config.eos_token_id,
        "pad": config.pad_token_id,
    }
    named_ids = _named_ids(folder / TOKENIZER_CONFIG_FILE, vocab)
    named_pad_id = named_ids.pop("pad", config.pad_token_id)
    # Some releases name one end token here and another there: each of them ends an answer.
    eos_ids = {
        config.eos_token_id,
        *config.all_eos_token_ids,
        named_ids.pop("eos", config.eos_token_id),
        *_generation_eos(folder / GENERATION_CONFIG_FILE, config),
    }
    if config.tokenizer_compatibility == "native":
        config_ids["pad"] = named_pad_id
    for role, expected in config_ids.items():
        _check_role(role, expected, named_ids.get(role, expected), vocab, folder)
    return Tokenizer(
        raw,
        config,
        bos_id=config_ids["bos"],
        eos_id=config_ids["eos"],
        pad_id=config_ids["pad"],
        eos_ids=eos_ids,
    )


def _without_added_tokens(raw: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same model, shared, with no added token to recognise.

    The library's own switch (encode_special_tokens) spares only the tokens flagged special, and
    `<think>` is not one of them.
    """
    plain = tokenizers.Tokenizer(raw.model)
    # The library reads a missing part as None but does not take None for one.
    if raw.pre_tokenizer is not None:
        plain.pre_tokenizer = raw.pre_tokenizer
    if raw.normalizer is not None:
        plain.normalizer = raw.normalizer
    return plain


def _check_encodable(text: str) -> None:
    if not isinstance(text, str):
        raise RequestError(
            f"found {type(text).__name__}, expected a string",
            field="prompt",
            hint="pass text; token ids have a parameter of their own, prompt_token_ids",
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} is U+{ord(text[error.start]):04X}, a lone surrogate: half "
            "a character, with no UTF-8 form",
            field="prompt",
            hint="send valid Unicode: the whole character, or U+FFFD in its place",
        ) from error


def _generation_eos(path: Path, config: ModelConfig) -> list[int]:
    found = read_generation_eos(path)
    if max(found, default=0) >= config.vocab_size:
        raise ConfigError(
            f"found {max(found)}, expected token ids below {config.vocab_size}",
            where=f"{path}: eos_token_id",
            hint=_SAME_CHECKPOINT_HINT,
        )
    return found


def _named_ids(path: Path, vocab: dict[str, int]) -> dict[str, int]:
    """The id of each role that tokenizer_config.json names."""
    spellings = read_role_spellings(path)
    for role, spelling in spellings.items():
        if spelling not in vocab:
            raise ConfigError(
                f"found {spelling!r}, expected a token of {TOKENIZER_FILE}",
                where=f"{path}: {role}_token",
                hint=_SAME_CHECKPOINT_HINT,
            )
    return {role: vocab[spelling] for role, spelling in spellings.items()}


def _check_role(role: str, expected: int, named: int, vocab: dict[str, int], folder: Path) -> None:
    if named != expected:
        raise ConfigError(
            f"found a token with id {named}, expected {role}_token_id {expected} of config.json",
            where=f"{folder / TOKENIZER_CONFIG_FILE}: {role}_token",
            hint=_SAME_CHECKPOINT_HINT,
        )
    if expected not in vocab.values():
        raise ConfigError(
            f"found no token with id {expected}, expected {role}_token_id of config.json",
            where=str(folder / TOKENIZER_FILE),
            hint=_SAME_CHECKPOINT_HINT,
        )
