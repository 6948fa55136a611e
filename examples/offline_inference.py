"""Offline inference: the perplexity of a text, and text that follows a prompt.

With --check_structured_output also answers that obey a regular expression, a JSON schema and a
grammar; then the exit status is 1 if one of them does not, or if the perplexity is above its bound.

DEEPINFER_HF_MODEL_DIR names the model's folder (default: the demo model, or a random toy);
DEEPINFER_ACCELERATOR is nvidia, ascend or cpu (default: what is there).
"""

import argparse
import math
import sys
from pathlib import Path

from _structured_output import check_structured_output

from deepinfer import LLM, DeepInferError, SamplingParams

TEXT = Path(__file__).with_name("text.txt").read_text(encoding="utf-8")
PROMPTS = ["The old bridge", "Every morning the baker", "Two and two"]


def main() -> int:
    """Print both; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, of in (("ep", "expert"), ("dp", "data"), ("cp", "context")):
        dest = f"{of}_parallel_size"
        parser.add_argument(f"--{name}", dest=dest, type=int, default=1, help=f"{of} ranks: only 1")
    parser.add_argument("--check_structured_output", action="store_true", help="see above")
    parser.add_argument("--max_perplexity", type=float, help="default: 16 times the vocabulary")
    options = vars(parser.parse_args())
    is_check = options.pop("check_structured_output")
    bound = options.pop("max_perplexity")
    with LLM(**options) as llm:
        scored = llm.generate(TEXT, SamplingParams(max_tokens=1, prompt_logprobs=True))[0]
        logprobs = [one.logprob for one in scored.prompt_logprobs or [] if one is not None]
        perplexity = math.exp(-sum(logprobs) / len(logprobs))
        print(f"perplexity of examples/text.txt: {perplexity:.2f} over {len(logprobs)} tokens")

        params = SamplingParams(temperature=0.7, max_tokens=32, seed=0)
        for output in llm.generate(PROMPTS, params):
            print(f"{output.prompt!r} -> {output.text!r}")
        if not is_check:
            return 0
        # A die with one face for each token reaches the vocabulary; random weights, which are sure
        # of what they do not know, some fourteen times that. Above it something is broken.
        bound = 16 * llm.get_tokenizer().vocab_len if bound is None else bound
        faults = check_structured_output(llm)
        if not perplexity <= bound:
            faults.append(f"perplexity {perplexity:.2f} is above {bound:.2f}")
    for fault in faults:
        print(f"FAILED {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DeepInferError as error:
        sys.exit(f"error: {error}")
