"""Where a model comes from: a folder, the local cache, or a download that was agreed to."""

import json
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import errors as hub
from huggingface_hub.utils import validate_repo_id

from deepinfer.checkpoint import source
from deepinfer.checkpoint.source import FILES, LARGE_BYTES, find_model
from deepinfer.errors import ConfigError

NAME = "owner/name"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
WHOLE = ("config.json", "tokenizer.json", "model.safetensors.index.json", *SHARDS)


class FakeHub:
    """huggingface_hub with one repository: its files' sizes, the cache, what was asked."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.sizes = dict.fromkeys(WHOLE, 1000)
        self.error: Exception | None = None  # of whatever needs the network
        self.calls: list[str] = []

    def snapshot_download(
        self, name: str, *, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        validate_repo_id(name)  # as the real one
        assert (name, allow_patterns) == (NAME, FILES)
        if local_files_only:
            self.calls.append("look")
            if not self.cache.exists():
                raise hub.LocalEntryNotFoundError("nothing of it is in the cache")
            return str(self.cache)
        self.calls.append("download")
        fill(self.cache, *(name for name in self.sizes if "/" not in name))
        return str(self.cache)

    def model_info(self, name: str, *, files_metadata: bool) -> Any:
        assert (name, files_metadata) == (NAME, True)
        self.calls.append("ask")
        if self.error is not None:
            raise self.error
        files = [SimpleNamespace(rfilename=name, size=size) for name, size in self.sizes.items()]
        return SimpleNamespace(siblings=files)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    """A hub with nothing in its cache, and a disk with room."""
    made = FakeHub(tmp_path / "hub" / "snapshot")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(source, "snapshot_download", made.snapshot_download)
    monkeypatch.setattr(source, "HfApi", lambda: made)
    monkeypatch.setattr(source, "HF_HUB_CACHE", str(tmp_path / "not" / "there" / "yet"))
    set_free(monkeypatch, 10 * LARGE_BYTES)
    return made


def set_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    def disk_usage(place: Path) -> Any:
        assert Path(place).exists()
        return SimpleNamespace(free=num_bytes)

    monkeypatch.setattr("shutil.disk_usage", disk_usage)


def fill(folder: Path, *names: str) -> None:
    """Files with these names; the index lists both shards."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"{}")
    if "model.safetensors.index.json" in names:
        weight_map = {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1]}
        (folder / names[names.index("model.safetensors.index.json")]).write_text(
            json.dumps({"weight_map": weight_map})
        )


def find(model: str = NAME, *, yes: bool = False, lines: list[str] | None = None) -> Path:
    report: Callable[[str], None] = (lines if lines is not None else []).append
    return find_model(model, may_download_large=yes, report=report)


def refused(model: str = NAME, *, yes: bool = False) -> ConfigError:
    lines: list[str] = []
    with pytest.raises(ConfigError) as caught:
        find(model, yes=yes, lines=lines)
    assert caught.value.where == "model"
    assert caught.value.hint
    assert "\n" not in caught.value.what
    assert lines == []
    return caught.value


def web_error(kind: type[hub.HfHubHTTPError]) -> hub.HfHubHTTPError:
    """Made without a response of the HTTP library, which is another one in each release."""
    error = kind.__new__(kind)
    error.args = ("first line\nsecond line",)
    return error


@pytest.mark.parametrize("spelling", ["{}", "{}/", "~/there", "there", "./there"])
def test_a_folder_is_taken_as_it_is(
    spelling: str, fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of one's own is sent to the network, or another one is read."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "there").mkdir()
    found = find(spelling.format(tmp_path / "there"))
    assert found.samefile(tmp_path / "there")
    assert fake.calls == []


def test_a_folder_wins_over_a_repository(fake: FakeHub, tmp_path: Path) -> None:
    """`owner/name` is a folder here, and another model of that name is downloaded."""
    (tmp_path / NAME).mkdir(parents=True)
    assert find() == Path(NAME)
    assert fake.calls == []


@pytest.mark.parametrize(
    "model",
    [
        "no-such-folder",
        "/no/such/folder",
        "no/such/folder",
        "../no-such-folder",
        "./no-such-folder",
        "models/..",
        "models/.hidden",
        "two words/name",
        "owner/a--b",
        "owner/" + "x" * 200,
        "https://huggingface.co/owner/name",
        "~nobody-of-this-name/model",
        "nul\0byte",
        "größe/modell",
        "a.safetensors",
        "owner/name\n",
    ],
    ids=ascii,
)
def test_what_looks_like_nothing(model: str, fake: FakeHub, tmp_path: Path) -> None:
    """A mistyped path ends in a trace from inside huggingface_hub, or asks the network."""
    (tmp_path / "a.safetensors").write_bytes(b"")
    assert "folder" in refused(model).hint
    assert fake.calls == []


def test_a_file_is_no_folder(fake: FakeHub, tmp_path: Path) -> None:
    """N10: the path of a weight file is called missing although it is there."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "is a file" in refused("model.safetensors").what
    assert fake.calls == []


def test_whole_in_the_cache(fake: FakeHub) -> None:
    """A model that was downloaded once needs the network at each start."""
    fill(fake.cache, *WHOLE)
    fake.error = ConnectionError("no network")
    assert find() == fake.cache
    assert fake.calls == ["look"]


def test_one_file_of_weights_in_the_cache(fake: FakeHub) -> None:
    """A model without an index is never whole."""
    fill(fake.cache, "config.json", "tokenizer.json", "model.safetensors")
    assert find() == fake.cache
    assert fake.calls == ["look"]


@pytest.mark.parametrize("missing", WHOLE)
def test_part_in_the_cache_is_resumed(missing: str, fake: FakeHub) -> None:
    """N10: an interrupted download is taken for the model, and a tensor is missing later."""
    fill(fake.cache, *(name for name in WHOLE if name != missing))
    lines: list[str] = []
    assert find(lines=lines) == fake.cache
    assert fake.calls == ["look", "ask", "download"]
    assert (fake.cache / missing).exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"weight_map": []}', b"\xff\xfe"])
def test_damaged_index_in_the_cache(content: bytes, fake: FakeHub) -> None:
    """A damaged index in the cache ends in a trace of ours instead of a new download."""
    fill(fake.cache, *WHOLE)
    (fake.cache / "model.safetensors.index.json").write_bytes(content)
    assert find() == fake.cache
    assert fake.calls == ["look", "ask", "download"]


def test_download(fake: FakeHub) -> None:
    """A download starts without a word, or says another size."""
    fake.sizes |= {"model.bin": 10**15, "onnx/model.onnx": 10**15, "README.md": 10**15}
    fake.sizes[SHARDS[0]] = 3 * 10**9
    lines: list[str] = []
    assert find(lines=lines) == fake.cache
    assert fake.calls == ["look", "ask", "download"]
    assert lines == ["downloading owner/name: 5 files, 3.00 GB"]


def test_sizes_that_are_not_told(fake: FakeHub) -> None:
    """A hub that does not tell a file's size ends the download."""
    fake.sizes["config.json"] = None  # type: ignore[assignment]
    assert find() == fake.cache


@pytest.mark.parametrize(("num_bytes", "asks"), [(LARGE_BYTES, False), (LARGE_BYTES + 1, True)])
def test_large_needs_consent(num_bytes: int, asks: bool, fake: FakeHub) -> None:
    """Hundreds of gigabytes are downloaded because of a model's name."""
    fake.sizes = {"model.safetensors": num_bytes}
    if asks:
        error = refused()
        assert "5 GB" in error.what
        assert "--yes" in error.hint
        assert "download" not in fake.calls
    assert find(yes=asks) == fake.cache


@pytest.mark.parametrize("yes", [False, True])
def test_no_room(yes: bool, fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """N10: the disk is full after an hour of download."""
    set_free(monkeypatch, 2_000_000_000)
    fake.sizes = {"model.safetensors": 2_100_000_000}
    error = refused(yes=yes)
    assert "2.1 GB" in error.what
    assert "2.0 GB free" in error.what
    assert "HF_HOME" in error.hint
    assert "download" not in fake.calls


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (hub.OfflineModeIsEnabled("offline mode is enabled\nmore"), "offline mode is enabled"),
        (ConnectionError("no route"), "no route"),
        (TimeoutError(), "TimeoutError"),
        (source._HTTP_ERROR("name not known"), "name not known"),
        (web_error(hub.HfHubHTTPError), "first line"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_network(error: Exception, what: str, fake: FakeHub) -> None:
    """Without a network the message is a page of somebody else's trace."""
    fake.error = error
    found = refused()
    assert what in found.what
    assert "network" in found.hint


@pytest.mark.parametrize("kind", [hub.RepositoryNotFoundError, hub.GatedRepoError])
def test_no_such_repository(kind: type[hub.HfHubHTTPError], fake: FakeHub) -> None:
    """A mistyped or private name is called a fault of the network."""
    fake.error = web_error(kind)
    found = refused()
    assert "has no model 'owner/name'" in found.what
    assert "hf auth login" in found.hint


def test_a_download_that_breaks_off(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection lost in the middle ends in somebody else's trace."""

    def break_off(*_args: object, local_files_only: bool = False, **_options: object) -> str:
        if local_files_only:
            raise hub.LocalEntryNotFoundError("nothing of it is in the cache")
        raise source._HTTP_ERROR("connection reset")

    monkeypatch.setattr(source, "snapshot_download", break_off)
    with pytest.raises(ConfigError, match="connection reset") as caught:
        find()
    assert caught.value.where == "model"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("config.json", True),
        ("model-00001-of-00046.safetensors", True),
        ("model.safetensors.index.json", True),
        ("tokenizer_config.json", True),
        ("pytorch_model.bin", False),
        ("modeling_deepseek.py", False),
        ("README.md", False),
    ],
)
def test_what_is_downloaded(name: str, wanted: bool) -> None:
    """Code, or weights in another format, come along; or a needed file does not."""
    assert any(PurePosixPath(name).match(pattern) for pattern in FILES) is wanted
