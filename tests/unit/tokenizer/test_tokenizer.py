"""Text to ids and back, and the agreement of the tokenizer's files with config.json."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.config.model import read_model_config
from deepinfer.errors import ConfigError, RequestError
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from deepinfer.tokenizer.toy import CONTROL_TOKENS

SPELLINGS = [spelling for spelling, _ in CONTROL_TOKENS]
ids_of_toy = st.lists(st.integers(0, 511), max_size=20)


@pytest.fixture(scope="module", params=["a", "b"])
def golden(request: pytest.FixtureRequest, golden_folder: Path) -> tuple[Tokenizer, Any]:
    folder = golden_folder / request.param
    config = read_model_config(folder / "model")
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return load_tokenizer(folder / "model", config), expected["tokenization"]


def test_golden_pairs(golden: tuple[Tokenizer, Any]) -> None:
    """Ids that differ from the released tokenizer's: another prompt than the user wrote."""
    tokenizer, pairs = golden
    for pair in pairs:
        ids = tokenizer.encode(pair["text"], add_bos=False, allow_control=True)
        assert ids == pair["ids"], pair["text"]
        assert tokenizer.decode(ids) == pair["text"]


def test_golden_pairs_as_user_text(golden: tuple[Tokenizer, Any]) -> None:
    """The path for users splits ordinary text in another way than the released tokenizer."""
    tokenizer, pairs = golden
    ordinary = [p for p in pairs if not any(name in p["text"] for name in tokenizer.control_ids)]
    assert len(ordinary) == len(pairs) - 1
    for pair in ordinary:
        assert tokenizer.encode(pair["text"], add_bos=False) == pair["ids"], pair["text"]


def test_golden_control_spellings_stay_text(golden: tuple[Tokenizer, Any]) -> None:
    """J10: a control token spelled by a user becomes one, flagged special or not."""
    tokenizer, pairs = golden
    control_ids = set(tokenizer.control_ids.values())
    for text in [*tokenizer.control_ids, pairs[-1]["text"]]:
        ids = tokenizer.encode(text, add_bos=False)
        assert control_ids.isdisjoint(ids), text
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@given(st.lists(st.one_of(st.sampled_from([*SPELLINGS, "<", "｜", "think>"]), st.text(max_size=4))))
def test_user_text_never_yields_control_ids(toy: Tokenizer, pieces: list[str]) -> None:
    """J10: a spelling is recognised next to certain neighbours, or its bytes change on the way."""
    text = "".join(pieces)
    ids = toy.encode(text, add_bos=False)
    assert set(toy.control_ids.values()).isdisjoint(ids)
    assert b"".join(map(toy.token_bytes, ids)) == text.encode()


def test_allow_control_recognises_every_control_token(toy: Tokenizer) -> None:
    """A prompt of the recipe loses its turns because a marker is split like text."""
    ids = [toy.control_ids[spelling] for spelling in SPELLINGS]
    assert toy.encode("".join(SPELLINGS), add_bos=False, allow_control=True) == ids


def test_bos_under_release(toy: Tokenizer) -> None:
    """BOS missing, doubled, or forgeable: every position of the prompt is off by one."""
    assert toy.encode("") == [toy.bos_id]
    assert toy.encode("the") == [toy.bos_id, *toy.encode("the", add_bos=False)]
    bos = next(name for name, id_ in toy.control_ids.items() if id_ == toy.bos_id)
    assert toy.encode(f"{bos}the", allow_control=True) == toy.encode("the")
    assert toy.encode(bos)[1:] == toy.encode(bos, add_bos=False) != [toy.bos_id]


def test_native_inserts_nothing(toy_folder: Path, make_config: Callable[..., Any]) -> None:
    """BOS comes into a prompt of a checkpoint that says it wants none."""
    native = load_tokenizer(toy_folder, make_config(tokenizer_compatibility="native"))
    assert native.encode("the") == native.encode("the", add_bos=False) != []
    assert native.bos_id not in native.encode("the")


def test_post_processor_does_not_add_bos(
    toy_folder: Path, make_config: Callable[..., Any], edit_json: Callable[..., None]
) -> None:
    """A template in tokenizer.json puts BOS where nobody asked for it, or twice."""
    bos = "<｜begin▁of▁sentence｜>"
    piece = {"SpecialToken": {"id": bos, "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {bos: {"id": bos, "ids": [0], "tokens": [bos]}},
    }
    edit_json(toy_folder / "tokenizer.json", lambda t: t.update(post_processor=template))
    raw = tokenizers.Tokenizer.from_file(str(toy_folder / "tokenizer.json"))
    assert raw.encode("the").ids[0] == 0  # the template works
    tokenizer = load_tokenizer(toy_folder, make_config())
    for allow_control in (False, True):
        assert tokenizer.encode("the", allow_control=allow_control).count(0) == 1
        assert 0 not in tokenizer.encode("the", add_bos=False, allow_control=allow_control)


def test_stored_truncation_and_padding_are_ignored(
    toy: Tokenizer,
    toy_folder: Path,
    make_config: Callable[..., Any],
    edit_json: Callable[..., None],
) -> None:
    """A prompt is cut, or filled with PAD, because a training script left its settings behind."""
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 40},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 2,
        "pad_type_id": 0,
        "pad_token": "<｜▁pad▁｜>",
    }
    path = toy_folder / "tokenizer.json"
    edit_json(path, lambda t: t.update(truncation=truncation, padding=padding))
    tokenizer = load_tokenizer(toy_folder, make_config())
    for allow_control in (False, True):
        ids = tokenizer.encode("the keeper of the light", allow_control=allow_control)
        assert ids == toy.encode("the keeper of the light")


@pytest.mark.parametrize(
    ("text", "position"), [("\ud800", "character 0"), ("ab🙂\udfffc", "character 3")]
)
def test_lone_surrogate_is_refused(toy: Tokenizer, text: str, position: str) -> None:
    """A TypeError from inside the library reaches the user, or ends the engine."""
    for allow_control in (False, True):
        with pytest.raises(RequestError, match="surrogate") as caught:
            toy.encode(text, allow_control=allow_control)
        assert caught.value.field == "prompt"
        assert position in caught.value.what


@pytest.mark.parametrize("text", [None, b"the", ["the"], 3])
def test_prompt_of_another_type_is_refused(toy: Tokenizer, text: Any) -> None:
    """An AttributeError instead of an error that names the field."""
    with pytest.raises(RequestError, match="expected a string") as caught:
        toy.encode(text)
    assert caught.value.field == "prompt"


@given(ids_of_toy, st.booleans())
def test_decode_equals_the_library(
    toy: Tokenizer, toy_of_library: tokenizers.Tokenizer, ids: list[int], skip_special: bool
) -> None:
    """Our byte table or our U+FFFD rule is another one than the released tokenizer's."""
    expected = toy_of_library.decode(ids, skip_special_tokens=skip_special)
    assert toy.decode(ids, skip_special=skip_special) == expected


@given(st.text())
def test_text_round_trip(toy: Tokenizer, text: str) -> None:
    """Text that changes on its way through ids and back."""
    assert toy.decode(toy.encode(text, add_bos=False)) == text


def test_special_and_control_differ(toy: Tokenizer) -> None:
    """skip_special drops `<think>`, so a reader of the answer cannot find the thoughts."""
    ids = [toy.bos_id, toy.control_ids["<think>"], *toy.encode("the"), toy.eos_id]
    assert toy.decode(ids, skip_special=True) == "<think>the"
    assert toy.decode(ids).startswith("<｜begin▁of▁sentence｜><think>")


def test_ids_without_a_token(toy_folder: Path, make_config: Callable[..., Any]) -> None:
    """An id that the padded model can sample, but no token has, ends the answer with an error."""
    tokenizer = load_tokenizer(toy_folder, make_config(vocab_size=520))
    assert tokenizer.vocab_len == 512
    assert tokenizer.token_bytes(519) == b""
    assert tokenizer.decode([519, *tokenizer.encode("the", add_bos=False), 512]) == "the"


@pytest.mark.parametrize("token_id", [-1, 512, 2**40])
def test_unknown_ids_are_refused(toy: Tokenizer, token_id: int) -> None:
    """-1 reads the last token; a huge id is an IndexError."""
    with pytest.raises(RequestError, match=str(token_id)) as caught:
        toy.decode([5, token_id])
    assert caught.value.field == "token_ids"


def test_roles_come_from_config_without_tokenizer_config(
    toy_folder: Path, make_config: Callable[..., Any]
) -> None:
    """A folder with tokenizer.json alone is refused, or gets no BOS."""
    (toy_folder / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(toy_folder, make_config())
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    with pytest.raises(ConfigError, match=r"no token with id 515.*eos_token_id"):
        load_tokenizer(toy_folder, make_config(vocab_size=520, eos_token_id=515))


def test_pad_by_compatibility(
    toy_folder: Path, make_config: Callable[..., Any], edit_json: Callable[..., None]
) -> None:
    """PAD of tokenizer_config.json (there often EOS) wins under release, or loses under native."""
    eos = {"content": "<｜end▁of▁sentence｜>", "lstrip": False}
    edit_json(toy_folder / "tokenizer_config.json", lambda t: t.update(pad_token=eos))
    assert load_tokenizer(toy_folder, make_config()).pad_id == 2
    native = make_config(tokenizer_compatibility="native")
    assert load_tokenizer(toy_folder, native).pad_id == 1


def test_vocabulary_larger_than_the_model(
    toy_folder: Path, make_config: Callable[..., Any]
) -> None:
    """The tokenizer of another checkpoint yields ids beyond the embedding table."""
    with pytest.raises(ConfigError, match=r"ids up to 511.*vocab_size 300") as caught:
        load_tokenizer(toy_folder, make_config(vocab_size=300))
    assert caught.value.where == str(toy_folder / "tokenizer.json")


@pytest.mark.parametrize("entry", ["</think>", {"content": "</think>"}])
def test_roles_that_disagree(
    entry: Any,
    toy_folder: Path,
    make_config: Callable[..., Any],
    edit_json: Callable[..., None],
) -> None:
    """The two files name different first tokens, and every prompt begins wrong."""
    edit_json(toy_folder / "tokenizer_config.json", lambda t: t.update({"bos_token": entry}))
    with pytest.raises(ConfigError, match=r"id 511, expected bos_token_id") as caught:
        load_tokenizer(toy_folder, make_config())
    assert caught.value.where.endswith("tokenizer_config.json: bos_token")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("in_tokenizer", "in_generation", "in_config", "found"),
    [
        ("</think>", None, (), {1, 511}),
        (None, 7, (), {1, 7}),
        (None, [7, 8], (), {1, 7, 8}),
        (None, None, (1, 9), {1, 9}),
        ("</think>", [7], (1, 9), {1, 7, 9, 511}),
        (None, None, (), {1}),
    ],
)
def test_end_tokens_of_all_files(
    in_tokenizer: str | None,
    in_generation: Any,
    in_config: tuple[int, ...],
    found: set[int],
    toy_folder: Path,
    make_config: Callable[..., Any],
    edit_json: Callable[..., None],
) -> None:
    """E12, G13: an end token that only one file names does not end an answer."""
    if in_tokenizer is not None:
        change = {"eos_token": in_tokenizer}
        edit_json(toy_folder / "tokenizer_config.json", lambda t: t.update(change))
    if in_generation is not None:
        text = json.dumps({"eos_token_id": in_generation})
        (toy_folder / "generation_config.json").write_text(text)
    tokenizer = load_tokenizer(toy_folder, make_config(all_eos_token_ids=in_config))
    assert tokenizer.eos_ids == found


@pytest.mark.parametrize("wrong", ["</s>", [1, "2"], True, [-1], 600])
def test_end_token_that_is_none(
    wrong: Any, toy_folder: Path, make_config: Callable[..., Any]
) -> None:
    """A damaged generation_config.json is passed over, and answers never end."""
    (toy_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
    with pytest.raises(ConfigError) as caught:
        load_tokenizer(toy_folder, make_config())
    assert caught.value.where.endswith("generation_config.json: eos_token_id")


@pytest.mark.parametrize("role", ["bos", "eos", "pad"])
def test_role_that_does_not_exist(
    role: str, toy_folder: Path, make_config: Callable[..., Any], edit_json: Callable[..., None]
) -> None:
    """A role names a token that the vocabulary lacks."""
    edit_json(toy_folder / "tokenizer_config.json", lambda t: t.update({f"{role}_token": "<gone>"}))
    with pytest.raises(ConfigError, match=r"'<gone>', expected a token of tokenizer\.json"):
        load_tokenizer(toy_folder, make_config())
