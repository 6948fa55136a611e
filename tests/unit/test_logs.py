"""The log's set-up and the timing of stages."""

import logging

import pytest

from deepinfer.logs import Stages, setup_logging


def test_lines_go_to_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A second set-up doubles every line, or lines mix with generated text on stdout."""
    setup_logging("info")
    setup_logging("info")
    logging.getLogger("deepinfer.engine").info("hello")
    logging.getLogger("deepinfer.engine").debug("unseen")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("hello") == 1
    assert "unseen" not in err


def test_unknown_level() -> None:
    """A misspelt level silences the log."""
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging("loud")


def test_stages_add_up(caplog: pytest.LogCaptureFixture) -> None:
    """A stage that fails or comes twice is lost, and a slow start cannot be explained."""
    ticks = iter([0.0, 1.5, 1.5, 4.0, 5.0, 6.0])
    stages = Stages(clock=lambda: next(ticks))
    with stages("config"):
        pass
    with stages("weights"):
        pass
    with pytest.raises(KeyError), stages("config"):
        raise KeyError
    assert stages.seconds == {"config": 2.5, "weights": 2.5}
    logger = logging.getLogger("stages")
    with caplog.at_level(logging.INFO, logger="stages"):
        stages.log(logger)
    assert caplog.messages == ["ready in 5.0 s: config 2.5, weights 2.5"]
