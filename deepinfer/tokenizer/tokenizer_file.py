"""Reads tokenizer.json and tokenizer_config.json, and refuses what would go wrong silently later.

Knows the files alone: not config.json, and not what the tokens are used for.
"""

import json
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models

from deepinfer.errors import ConfigError

TOKENIZER_FILE: Final = "tokenizer.json"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
GENERATION_CONFIG_FILE: Final = "generation_config.json"
ROLES: Final = ("bos", "eos", "pad")

_FETCH_HINT = "copy the file again from the released checkpoint, whole and unchanged"
_LFS_MARK = "version https://git-lfs"


def _byte_of_char() -> dict[str, int]:
    """The alphabet of byte-level BPE: 256 visible characters, one per byte.

    A byte that Latin-1 prints is its own character; the others take the code points from 256 on,
    in order.
    """
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + place): byte for place, byte in enumerate(hidden)
    }


_BYTE_OF_CHAR: Final = _byte_of_char()


def open_tokenizer_json(path: Path) -> tokenizers.Tokenizer:
    """The library's tokenizer for the file, checked to be byte-level BPE with the ids it states.

    Raises ConfigError naming the file, what was found, and what was expected.
    """
    stored = _read_json_object(path)
    try:
        raw = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower; it is passed on, not hidden
        raise ConfigError(
            f"the tokenizers library cannot read it: {error}", where=str(path), hint=_FETCH_HINT
        ) from error
    if not isinstance(raw.model, models.BPE) or not isinstance(raw.decoder, decoders.ByteLevel):
        raise ConfigError(
            f"found model {type(raw.model).__name__} with decoder {type(raw.decoder).__name__}, "
            "expected BPE with ByteLevel",
            where=str(path),
            hint=_FETCH_HINT,
        )
    _check_ids(raw, stored, path)
    _check_alphabet(raw, path)
    _check_added_tokens_stay_apart(raw, stored, path)
    # Either would change the ids of a long or a short text silently.
    raw.no_truncation()
    raw.no_padding()
    return raw


def token_bytes_by_id(raw: tokenizers.Tokenizer) -> list[bytes]:
    """The bytes of every token, by id up to the highest; an id without a token has none.

    An added token stands for the UTF-8 bytes of its spelling.
    """
    vocab = raw.get_vocab(with_added_tokens=True)
    added_ids = raw.get_added_tokens_decoder().keys()
    table = [b""] * (max(vocab.values()) + 1)
    for token, token_id in vocab.items():
        if token_id not in added_ids and _is_in_alphabet(token):
            table[token_id] = bytes(_BYTE_OF_CHAR[char] for char in token)
        else:
            table[token_id] = token.encode("utf-8")
    return table


def read_role_spellings(path: Path) -> dict[str, str]:
    """Spellings of "bos", "eos" and "pad" in tokenizer_config.json, as far as it has them.

    An absent file has none. Raises ConfigError for a damaged file or an entry of another form.
    """
    if not path.exists():
        return {}
    stored = _read_json_object(path)
    spellings = {}
    for role in ROLES:
        entry = stored.get(f"{role}_token")
        spelling = entry.get("content") if isinstance(entry, dict) else entry
        if isinstance(spelling, str):
            spellings[role] = spelling
        elif entry is not None:
            raise ConfigError(
                f"found {entry!r}, expected a string or an object with a string `content`",
                where=f"{path}: {role}_token",
                hint=_FETCH_HINT,
            )
    return spellings


def read_generation_eos(path: Path) -> list[int]:
    """The end tokens that generation_config.json names: none, one, or a list of them.

    An absent file names none. Raises ConfigError for a damaged file or an entry of another form.
    """
    found = _read_json_object(path).get("eos_token_id") if path.exists() else None
    listed = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in listed):
        raise ConfigError(
            f"found {found!r}, expected a token id or a list of them",
            where=f"{path}: eos_token_id",
            hint=_FETCH_HINT,
        )
    return listed


def _read_json_object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError("the file is missing", where=str(path), hint=_FETCH_HINT) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"unreadable: {error}", where=str(path), hint=_FETCH_HINT) from error
    if text.startswith(_LFS_MARK):
        raise ConfigError(
            "found a git-lfs pointer, expected the file it points to",
            where=str(path),
            hint="run `git lfs pull` where the checkpoint was cloned",
        )
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"not JSON, or cut short after {len(text)} characters: {error}",
            where=str(path),
            hint=_FETCH_HINT,
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"found a JSON {type(found).__name__}, expected an object",
            where=str(path),
            hint=_FETCH_HINT,
        )
    return found


def _check_ids(raw: tokenizers.Tokenizer, stored: dict[str, Any], path: Path) -> None:
    """The library renumbers added tokens silently when the ids in the file leave a gap."""
    written: dict[str, int] = dict(stored["model"]["vocab"])
    written |= {token["content"]: token["id"] for token in stored.get("added_tokens") or ()}
    read = raw.get_vocab(with_added_tokens=True)
    owners: dict[int, str] = {}
    for token, token_id in written.items():
        owner = owners.setdefault(token_id, token)
        if owner != token or read.get(token) != token_id:
            problem = f"{owner!r} has it" if owner != token else f"it reads as {read.get(token)}"
            raise ConfigError(
                f"token {token!r} is written with id {token_id}, but {problem}",
                where=str(path),
                hint=_FETCH_HINT,
            )


def _check_alphabet(raw: tokenizers.Tokenizer, path: Path) -> None:
    """Where a byte has no token the library drops it from the text silently."""
    missing = [byte for char, byte in _BYTE_OF_CHAR.items() if raw.token_to_id(char) is None]
    if missing:
        raise ConfigError(
            f"found no token for byte {min(missing):#04x}, expected one for each of 256 "
            f"({len(missing)} missing)",
            where=str(path),
            hint=_FETCH_HINT,
        )


def _check_added_tokens_stay_apart(
    raw: tokenizers.Tokenizer, stored: dict[str, Any], path: Path
) -> None:
    """An added token that the merges can build too could be forged by a user's text."""
    model = stored["model"]
    # Merges are pairs; older files write them as one string with a space between the parts.
    built = {m.replace(" ", "") if isinstance(m, str) else "".join(m) for m in model["merges"]}
    built |= _BYTE_OF_CHAR.keys()
    if model.get("ignore_merges"):  # then a whole word is looked up before any merge
        built |= {token for token in model["vocab"] if _is_in_alphabet(token)}
    for token in raw.get_added_tokens_decoder().values():
        if token.content in built:
            raise ConfigError(
                f"added token {token.content!r} can also come out of ordinary text",
                where=str(path),
                hint="a control token must not be an entry that the merges reach",
            )


def _is_in_alphabet(token: str) -> bool:
    return _BYTE_OF_CHAR.keys() >= set(token)
