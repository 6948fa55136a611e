"""Drafts at a start: steps are timed in memory that is nobody's, once, and as long as agreed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deepinfer import LLM, SamplingParams
from deepinfer.cache.layout import PoolSizes
from deepinfer.config.engine import EngineArgs, resolve
from deepinfer.config.engine_config import EngineConfig
from deepinfer.config.env import Environment
from deepinfer.config.machine import Machine
from deepinfer.config.model import ModelConfig
from deepinfer.engine import load_drafts
from deepinfer.engine.load_drafts import check_drafts, make_drafting
from deepinfer.engine.parts import make_worker
from deepinfer.errors import ConfigError
from deepinfer.worker.worker import Worker
from tests.laws.networks import open_source

PLAIN = Machine(has_cuda=False, has_npu=False, num_cpus=6, memory_bytes=8000)


def options_of(config: ModelConfig, **options: Any) -> EngineConfig:
    args = EngineArgs(dtype="float32", max_num_seqs=3, draft_schedule="confidence", **options)
    return resolve(args, config, PLAIN)


@pytest.fixture(scope="module")
def worker(tiny_dir: Path, tiny_config: ModelConfig) -> Worker:
    network = open_source(tiny_dir).network("fp32")
    return make_worker(network, options_of(tiny_config), PoolSizes(2, 3, 1, 1, 256))


def test_curve_and_cache(
    worker: Worker, tiny_config: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are timed at sizes that cannot come, or at each start again."""
    monkeypatch.setattr(load_drafts, "_TIME_S", 1e9)  # however busy the machine
    options = options_of(tiny_config)
    seen = Environment(curve_dir=tmp_path / "times")
    drafting = make_drafting(worker, options, Path("m"), seen)
    assert drafting.step_time is not None
    assert drafting.step_time._sizes.tolist() == [1, 2, 3, 4, 5, 6, 8, 16, 18]
    monkeypatch.setattr(load_drafts, "measure_curve", None)
    again = make_drafting(worker, options, Path("m"), seen)
    assert again.step_time is not None
    assert again.step_time._times.tolist() == drafting.step_time._times.tolist()
    with pytest.raises(TypeError):  # another thread count is another ground
        make_drafting(worker, replace(options, num_threads=5), Path("m"), seen)


def test_time_is_bounded(
    worker: Worker, tiny_config: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model is timed for minutes before it starts, or not at all."""
    monkeypatch.setattr(load_drafts, "_TIME_S", 0.0)
    drafting = make_drafting(worker, options_of(tiny_config), Path("m"), Environment())
    assert drafting.step_time is not None
    assert drafting.step_time._sizes.tolist() == [1, 2, 3, 4, 5, 6, 8]


def test_no_times_where_nobody_asks(worker: Worker, tiny_config: ModelConfig) -> None:
    """A start with fixed drafts takes the time of one by confidence."""
    options = replace(options_of(tiny_config), draft_schedule="fixed")
    assert make_drafting(worker, options, Path("m"), Environment()).step_time is None


def test_refused(tiny_config: ModelConfig) -> None:
    """Long n-grams are looked back on across rejected drafts; temperatures fit no draft."""
    options = options_of(tiny_config)
    check_drafts(tiny_config, options, Environment(confidence_temperatures=(1.0,) * 5))
    with pytest.raises(ConfigError, match="n-grams of 5 leave room for 4") as caught:
        check_drafts(replace(tiny_config, engram_max_ngram_size=5), options, Environment())
    assert caught.value.where == "num_drafts"
    with pytest.raises(ConfigError, match="expected 1 or num_drafts 5") as caught:
        check_drafts(tiny_config, options, Environment(confidence_temperatures=(1.0, 2.0)))
    assert "TEMPERATURE" in caught.value.where


def test_the_environment_reaches_the_engine(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is honoured in the documents only, or wins against an option."""
    monkeypatch.setenv("DEEPINFER_USE_NEXTN_DECODE", "3")
    monkeypatch.setenv("DEEPINFER_DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "2")
    sizes: dict[str, Any] = {"device": "cpu", "max_num_seqs": 2, "max_model_len": 128}
    with LLM(tiny_dir, **sizes) as llm:
        assert (llm.options.draft_schedule, llm.options.num_drafts) == ("fixed", 3)
        drafter = llm._requests.model.engine.worker.drafter
        assert drafter is not None
        assert drafter.temperatures == (2.0,)
        (output,) = llm.generate("x", SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        stats = llm.draft_stats()
        assert output.drafts.drafted == stats.num_drafted > 0
        assert output.drafts.verified == stats.num_verified <= stats.num_drafted
        assert output.drafts.accepted == stats.num_accepted
        assert stats.num_tokens == 9
    monkeypatch.setenv("DEEPINFER_USE_NEXTN_DECODE", "0")
    with LLM(tiny_dir, **sizes) as llm:
        assert (llm.options.draft_schedule, llm.options.num_drafts) == ("off", 0)
        assert llm._requests.model.engine.worker.drafter is None
        llm.generate("x", SamplingParams(temperature=0, max_tokens=4))
        assert llm.draft_stats().num_drafted == 0
    with LLM(tiny_dir, draft_schedule="confidence", num_drafts=2, **sizes) as llm:
        assert (llm.options.draft_schedule, llm.options.num_drafts) == ("confidence", 2)
