"""Offline inference: the perplexity of a text, and text that follows a prompt.

DEEPINFER_HF_MODEL_DIR names the model's folder (default: the demo model, or a random toy);
DEEPINFER_ACCELERATOR is nvidia, ascend or cpu (default: what is there).
"""

import argparse
import math
import sys
from pathlib import Path

from deepinfer import LLM, DeepInferError, SamplingParams

TEXT = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
PROMPTS = ["The old bridge", "Every morning the baker", "Two and two"]


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, of in (("ep", "expert"), ("dp", "data"), ("cp", "context")):
        dest = f"{of}_parallel_size"
        parser.add_argument(f"--{name}", dest=dest, type=int, default=1, help=f"{of} ranks: only 1")
    with LLM(**vars(parser.parse_args())) as llm:
        scored = llm.generate(TEXT, SamplingParams(max_tokens=1, prompt_logprobs=True))[0]
        logprobs = [one.logprob for one in scored.prompt_logprobs or [] if one is not None]
        perplexity = math.exp(-sum(logprobs) / len(logprobs))
        print(f"perplexity of examples/text.txt: {perplexity:.2f} over {len(logprobs)} tokens")

        params = SamplingParams(temperature=0.7, max_tokens=32, seed=0)
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.text!r}")


if __name__ == "__main__":
    try:
        main()
    except DeepInferError as error:
        sys.exit(f"error: {error}")
