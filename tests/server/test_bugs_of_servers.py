"""Faults that users of such engines have reported, as far as a client of a server can meet them.

The engine is a script: it says the tokens that a model would have to say for the fault to show.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from deepinfer.config.model import read_model_config
from deepinfer.messages import Delta
from deepinfer.outputs import FinishReason
from deepinfer.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.golden.recipe_cases import cases
from tests.server.fake_link import FakeLink
from tests.server.servers import serving
from tests.server.test_failures import whole_events
from tests.server.test_settings import post, state_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
PLAIN = {"type": "disabled"}
D = "｜DSML｜"
LONG_STOP = "a very long stop string that never comes"
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("f", "g")
]


@pytest.fixture(scope="module")
def tokenizer(tiny_dir: Path) -> Tokenizer:
    return load_tokenizer(tiny_dir, read_model_config(tiny_dir))


def by_byte(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """The ids of a text, one for each byte and one for each control token: as cut as can be."""
    control = tokenizer.control_ids
    ids = {tokenizer.token_bytes(i): i for i in range(max(control.values()), 0, -1)}
    if isinstance(text, bytes):
        return [ids[bytes([byte])] for byte in text]
    found = []
    for piece in re.split("(" + "|".join(map(re.escape, control)) + ")", text):
        found += [control[piece]] if piece in control else by_byte(tokenizer, piece.encode())
    return found


@dataclass
class Said:
    """An answer as a client has it."""

    content: str
    thoughts: str
    calls: list[tuple[str, Any]]
    finish_reason: str


class Server:
    """A server whose engine says `ids`, and then ends for the reason."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_model_len: int = 4096) -> None:
        self.folder, self.tokenizer, self.max_model_len = folder, tokenizer, max_model_len
        self.link = FakeLink(folder, [])

    def post(
        self, path: str, body: dict[str, Any], ids: Sequence[int], reason: FinishReason = "stop"
    ) -> httpx.Response:
        said = [Delta("r", 0, token_id) for token_id in ids]
        eos_id = self.tokenizer.eos_id if reason == "stop" else None
        said.append(Delta("r", 0, eos_id, finish_reason=reason))
        state, self.link = state_of(self.folder, said, self.max_model_len)
        return post(state, path, body)

    def chat(
        self, output: str | list[int], reason: FinishReason = "stop", **fields: Any
    ) -> tuple[Said, Said]:
        """(whole, streamed) of what the engine says, byte by byte if it is text."""
        ids = by_byte(self.tokenizer, output) if isinstance(output, str) else output
        body = {"messages": HI, **fields}
        whole = self.post(CHAT, body, ids, reason)
        assert whole.status_code == 200, whole.text
        streamed = self.post(CHAT, {**body, "stream": True}, ids, reason)
        return _whole(whole.json()), _joined(whole_events(streamed.text))

    @property
    def prompt(self) -> str:
        return self.tokenizer.decode(self.link.submitted[0].prompt_ids)


def _whole(data: Any) -> Said:
    (choice,) = data["choices"]
    message = choice["message"]
    calls = [
        (one["function"]["name"], json.loads(one["function"]["arguments"]))
        for one in message.get("tool_calls") or []
    ]
    content, thoughts = message.get("content") or "", message.get("reasoning_content") or ""
    return Said(content, thoughts, calls, choice["finish_reason"])


def _joined(events: list[Any]) -> Said:
    assert events[-1] == "[DONE]"
    choices = [one for event in events[:-1] for one in event["choices"]]
    deltas = [one["delta"] for one in choices]
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for call in (one for delta in deltas for one in delta.get("tool_calls") or []):
        at, function = call["index"], call["function"]
        names[at] = names.get(at, "") + (function.get("name") or "")
        arguments[at] = arguments.get(at, "") + (function.get("arguments") or "")
    content = "".join(delta.get("content") or "" for delta in deltas)
    thoughts = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    calls = [(names[at], json.loads(arguments[at])) for at in names]
    (reason,) = [one["finish_reason"] for one in choices if one["finish_reason"]]
    return Said(content, thoughts, calls, reason)


def pieces_of(answer: httpx.Response) -> list[str]:
    """The content in each chunk of a stream."""
    chunks = [event["choices"][0] for event in whole_events(answer.text)[:-1]]
    return [one.get("text") or one.get("delta", {}).get("content") or "" for one in chunks]


def alike(pair: tuple[Said, Said]) -> Said:
    """The answer, that is the same whole and streamed."""
    whole, streamed = pair
    assert streamed == whole
    return whole


def call(name: str, *parameters: tuple[str, str, bool]) -> str:
    """A block with one call. parameters: (key, text, whether it is a string)."""
    lines = [
        f'<{D} parameter name="{key}" string="{str(is_string).lower()}">{text}</{D} parameter>\n'
        for key, text, is_string in parameters
    ]
    inside = f'<{D} invoke name="{name}">\n{"".join(lines)}</{D} invoke>\n'
    return f"\n\n<{D} calls>\n{inside}</{D} calls>"


@pytest.fixture
def server(tiny_dir: Path, tokenizer: Tokenizer) -> Server:
    return Server(tiny_dir, tokenizer)


def test_i04_room_up_to_the_limit(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """The last position cannot be asked for, or one behind it can."""
    server = Server(tiny_dir, tokenizer, max_model_len=64)
    for length in (1, 40, 62, 63):
        for more, status in ((0, 200), (1, 400)):
            body = {"prompt": [70] * length, "max_tokens": 64 - length + more}
            answer = server.post(TEXT, body, [70], "length")
            assert answer.status_code == status, answer.text
    assert "64" in answer.text
    server.max_model_len = 600
    assert server.post(CHAT, {"messages": HI}, [70]).status_code == 200
    (submitted,) = server.link.submitted
    assert len(submitted.prompt_ids) + submitted.params.max_tokens == 600


@pytest.mark.slow
@pytest.mark.sample
def test_i04_every_prompt_up_to_the_limit(tiny_dir: Path) -> None:
    """An engine dies of the token at the limit: every length of prompt, with all the room."""

    async def ask_all(url: str) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            bodies = [
                {"prompt": [70] * n, "max_tokens": 24 - n, "ignore_eos": True} for n in range(1, 24)
            ]
            return await asyncio.gather(*(http.post(TEXT, json=body) for body in bodies))

    with serving(tiny_dir, "--dtype", "float32", "--max-model-len", "24") as server:
        answers = asyncio.run(ask_all(server.url))
        assert httpx.get(f"{server.url}/live").json()["restarts"] == 0
    for length, answer in enumerate(answers, 1):
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["finish_reason"] == "length"
        assert answer.json()["usage"]["completion_tokens"] == 24 - length


@pytest.mark.parametrize("tail", ["<｜User｜>", "</think>", f"<{D}", call("f"), "<", "\n"])
def test_h03_a_stop_list_changes_nothing_else(server: Server, tail: str) -> None:
    """The rest of a control token is in the answer because a stop string was set."""
    fields = {"thinking": PLAIN, "tools": TOOLS}
    expected = alike(server.chat(f"an answer{tail}", **fields))
    assert alike(server.chat(f"an answer{tail}", stop=[LONG_STOP, "zz"], **fields)) == expected
    assert expected.content.startswith("an answer")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_h03_text_is_not_late(server: Server, path: str) -> None:
    """Text comes late by the length of the longest stop string."""
    text = "it is shorter than the stop"
    body = {"messages": HI, "thinking": PLAIN} if path == CHAT else {"prompt": "a"}
    body |= {"stop": [LONG_STOP], "stream": True}
    answer = server.post(path, body, by_byte(server.tokenizer, text))
    pieces = pieces_of(answer)
    assert "".join(pieces) == text
    assert sum(map(bool, pieces)) > 3


@pytest.mark.parametrize("stop", ["E", "END", "</th", "a rather long one"])
def test_h07_thoughts_end_where_they_end(server: Server, stop: str) -> None:
    """What is held for a stop string cuts the end of the thoughts, and they end in the content."""
    output = f"r END </thin \n</think>c <b{call('f', ('k', 'a</b END', True))}"
    fields = {"tools": TOOLS, "stop": [stop]}
    found = alike(server.chat(output, **fields))
    assert found.thoughts == "r END </thin "
    assert found.content == "c <b"
    assert found.calls == [("f", {"k": "a</b END"})]
    assert found.finish_reason == "tool_calls"
    ids = server.tokenizer.encode(output, add_bos=False, allow_control=True)
    assert alike(server.chat(ids, **fields)) == found


@pytest.mark.parametrize("character", ["é", "語", "😀"])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_h09_characters_stay_whole(server: Server, character: str, path: str) -> None:
    """Replacement marks, or missing characters, where tokens or the answer end."""
    body = {"messages": HI, "thinking": PLAIN} if path == CHAT else {"prompt": "a"}
    coded = f"a{character}b{character}".encode()
    for end in range(len(coded), len(coded) - len(character.encode()), -1):
        ids = by_byte(server.tokenizer, coded[:end])
        whole = server.post(path, body, ids, "length").json()["choices"][0]
        pieces = pieces_of(server.post(path, {**body, "stream": True}, ids, "length"))
        text = whole["text"] if path == TEXT else whole["message"]["content"]
        # A cut character is left out of a chat, as the recipe has it, and a mark in Completions.
        errors = "replace" if path == TEXT else "ignore"
        assert text == "".join(pieces) == coded[:end].decode(errors=errors)
        assert not any("\ufffd" in piece for piece in pieces[:-2])


def test_h09_bad_bytes_cost_nothing_else(server: Server) -> None:
    """A byte that belongs to no character takes its neighbours along."""
    ids = by_byte(server.tokenizer, b"a\xffb\x80c")
    assert alike(server.chat(ids, thinking=PLAIN)).content == "a\ufffdb\ufffdc"


VALUES = ["true", "1", "1.5", "null", "[1]", '{"a": 2}', '"true"', str(2**70), '"é語"']


@pytest.mark.parametrize("is_string", [True, False])
def test_j03_strings_and_values(server: Server, is_string: bool) -> None:
    """Booleans and numbers come as strings, strings as numbers, or a large number is rounded."""
    block = call("f", *((f"k{n}", text, is_string) for n, text in enumerate(VALUES)))
    ids = server.tokenizer.encode(block, add_bos=False, allow_control=True)
    ((name, arguments),) = alike(server.chat(ids, thinking=PLAIN, tools=TOOLS)).calls
    expected = VALUES if is_string else [json.loads(text) for text in VALUES]
    assert (name, list(arguments.values())) == ("f", expected)
    assert [type(one) for one in arguments.values()] == [type(one) for one in expected]


@pytest.mark.parametrize("marker", [f"\n\n<{D} calls>\n<{D} invoke", "</think>", "<think>"])
def test_j05_starts_of_markers_are_text(server: Server, marker: str) -> None:
    """An answer that ends like the start of a marker loses its end in a stream."""
    starts = [marker[:end] for end in range(1, marker.find(">")) if D[0] not in marker[:end]]
    for start in starts:
        for text in (f"a{start}", f"a{start}x"):
            found = alike(server.chat(text, thinking=PLAIN, tools=TOOLS))
            assert (found.content, found.calls) == (text, [])


def test_j08_a_call_in_the_thoughts(server: Server) -> None:
    """Markup of a call is shown as thoughts; what only looks so ends them; or later thoughts are
    shown as content."""
    found = alike(server.chat(f"Hm.{call('f', ('k', '1', False))}", tools=TOOLS))
    assert (found.thoughts, found.content, found.calls) == ("Hm.", "", [("f", {"k": 1})])
    found = alike(server.chat("a\n\n<calls> and < D b</think>c", tools=TOOLS))
    assert (found.thoughts, found.content) == ("a\n\n<calls> and < D b", "c")
    assert found.calls == []


SWITCHES: list[tuple[str, dict[str, Any], bool]] = [
    (CHAT, {}, True),
    (CHAT, {"thinking": PLAIN}, False),
    (CHAT, {"reasoning_effort": "max"}, True),
    (CHAT, {"thinking": PLAIN, "reasoning_effort": "high"}, False),
    ("/v1/responses", {}, True),
    ("/v1/responses", {"reasoning": {"effort": "high"}}, True),
    ("/v1/responses", {"reasoning": {"effort": "none"}}, False),
    ("/v1/messages", {"thinking": {"type": "enabled"}}, True),
    ("/v1/messages", {"thinking": PLAIN}, False),
]


@pytest.mark.parametrize(("path", "fields", "thinks"), SWITCHES)
def test_j09_the_prompt_says_where_it_starts(
    server: Server, path: str, fields: dict[str, Any], thinks: bool
) -> None:
    """Thoughts are in the content, because prompt and reader look at different switches."""
    body = {"input": "Hi"} if path == "/v1/responses" else {"messages": HI}
    said = "Hm</think>Well" if thinks else "Well"
    answer = server.post(path, body | fields, by_byte(server.tokenizer, said))
    assert server.prompt.endswith("<think>" if thinks else "</think>")
    data = answer.json()
    if path == CHAT:
        found = [_whole(data).thoughts, _whole(data).content]
    elif path == "/v1/messages":
        found = [part.get("thinking", part.get("text")) for part in data["content"]]
    else:
        found = [part["text"] for item in data["output"] for part in item.get("content") or []]
    assert [one for one in found if one] == (["Hm", "Well"] if thinks else ["Well"])


def test_j09_a_raw_prompt_has_no_thoughts(server: Server) -> None:
    """Completions take the end of thoughts out of a text because the prompt looks like a chat."""
    opened = [*by_byte(server.tokenizer, "a"), server.tokenizer.control_ids["<think>"]]
    ids = by_byte(server.tokenizer, "Hm</think>Well")
    (choice,) = server.post(TEXT, {"prompt": opened}, ids).json()["choices"]
    assert choice["text"] == "Hm</think>Well"


@pytest.mark.parametrize(
    ("fields", "is_kept"),
    [({}, False), ({"tools": []}, False), ({"tools": TOOLS}, True), ({"thinking": PLAIN}, False)],
)
def test_j11_old_thoughts(server: Server, fields: dict[str, Any], is_kept: bool) -> None:
    """Thoughts of earlier turns are in the prompt when no tools are used, or missing when some
    are."""
    old = {"role": "assistant", "content": "Well.", "reasoning_content": "old thoughts"}
    answer = server.post(CHAT, {"messages": [*HI, old, *HI], **fields}, [70])
    assert answer.status_code == 200, answer.text
    assert ("old thoughts" in server.prompt) == is_kept
    assert "Well." in server.prompt


def test_j13_prompts_are_the_released_ones(tiny_dir: Path, tokenizer: Tokenizer) -> None:
    """Effort, thinking, tools or roles change the prompt in another way than in the release."""
    server = Server(tiny_dir, tokenizer, max_model_len=2**20)
    golden = [one for one in cases("prompt", "chat") if one["version"] == "v4.1"]
    seen = 0
    for case in golden:
        if {"options", "images"} & set(case):
            continue
        body = {name: value for name, value in case["request"].items() if name != "model"}
        answer = server.post(CHAT, body, [70])
        if not server.link.submitted:
            assert answer.status_code == 400, (case["id"], answer.text)
            continue
        seen += 1
        assert server.prompt == case["prompt"], case["id"]
    assert seen > 0.8 * len(golden) > 20
