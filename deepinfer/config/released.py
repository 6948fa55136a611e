"""The released model's configuration, which comes with the package: facts, no weights."""

import json
from pathlib import Path

from deepinfer.config.model import ModelConfig, parse_model_config

RELEASED = Path(__file__).with_name("released.json")


def released_config() -> ModelConfig:
    """Parsed and checked."""
    return parse_model_config(json.loads(RELEASED.read_text(encoding="utf-8")))
