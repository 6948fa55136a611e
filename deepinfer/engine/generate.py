"""Generation, one sequence at a time: each step runs the network on what is new and draws one
token.

Keys and values are plain tensors that grow. No batching, no paging, no drafts.
"""

from collections.abc import Iterator, Sequence

import torch

from deepinfer.engine.loading import LoadedModel
from deepinfer.errors import RequestError
from deepinfer.model.batch import GrowingStore, make_batch
from deepinfer.sampling.draw import draw, greedy
from deepinfer.sampling_params import SamplingParams

# Rows of the prompt in one forward: bounds the memory that a long prompt takes.
_CHUNK_ROWS = 512


def check_prompt(token_ids: Sequence[int], model: LoadedModel) -> None:
    """Raise RequestError for a prompt that the model cannot take."""
    vocab_size, limit = model.config.vocab_size, model.engine.max_model_len
    if not token_ids:
        raise RequestError(
            "the prompt has no tokens", field="prompt", hint="give at least one token or character"
        )
    for place, token_id in enumerate(token_ids):
        if (
            not isinstance(token_id, int)
            or isinstance(token_id, bool)
            or not 0 <= token_id < vocab_size
        ):
            raise RequestError(
                f"{token_id!r} at place {place} is no token id",
                field="prompt_token_ids",
                hint=f"ids are whole numbers from 0 to {vocab_size - 1}",
            )
    if len(token_ids) >= limit:
        raise RequestError(
            f"the prompt has {len(token_ids)} tokens, prompt and output may have {limit}",
            field="prompt",
            hint="shorten the prompt, or raise max_model_len if the checkpoint allows more",
        )


def generate(
    model: LoadedModel, prompt_ids: Sequence[int], params: SamplingParams
) -> Iterator[int]:
    """Token ids as they are drawn, the end token included; at most max_tokens, within
    max_model_len.

    Raises RequestError before the first token if the prompt is refused.
    """
    check_prompt(prompt_ids, model)
    seed = params.seed_or_random()
    token_ids = list(prompt_ids)
    room = model.engine.max_model_len - len(token_ids)
    store = GrowingStore(num_sequences=1)
    num_computed = 0
    for _ in range(min(params.max_tokens, room)):
        logits = _last_logits(model, token_ids, num_computed, store)
        num_computed = len(token_ids)
        token_id = _choose(logits, params, seed, position=len(token_ids))
        token_ids.append(token_id)
        yield token_id
        if token_id == model.tokenizer.eos_id and not params.ignore_eos:
            return


@torch.inference_mode()
def prompt_logprobs(model: LoadedModel, token_ids: Sequence[int]) -> list[float]:
    """Natural log-probability of each token but the first, given those before it.

    Raises RequestError if the tokens are refused as a prompt.
    """
    check_prompt(token_ids, model)
    ids = torch.tensor([list(token_ids)], device=model.engine.device)
    store, found = GrowingStore(num_sequences=1), []
    for start in range(0, len(token_ids), _CHUNK_ROWS):
        end = min(start + _CHUNK_ROWS, len(token_ids))
        hidden = model.network.run(make_batch(model.config, ids[:, :end], start), store)
        following = ids[0, start + 1 : end + 1]
        logprobs = model.network.head(hidden.final).log_softmax(-1)[: len(following)]
        found.append(logprobs.gather(1, following[:, None]).squeeze(1))
    return torch.cat(found).tolist()


@torch.inference_mode()
def _last_logits(
    model: LoadedModel, token_ids: list[int], num_computed: int, store: GrowingStore
) -> torch.Tensor:
    """Run the rows that are not computed yet, in chunks; the last one's logits, [1, vocab]."""
    ids = torch.tensor([token_ids], device=model.engine.device)
    for start in range(num_computed, len(token_ids), _CHUNK_ROWS):
        end = min(start + _CHUNK_ROWS, len(token_ids))
        hidden = model.network.run(make_batch(model.config, ids[:, :end], start), store)
    return model.network.head(hidden.final[-1:])


def _choose(logits: torch.Tensor, params: SamplingParams, seed: int, position: int) -> int:
    if params.greedy:
        return int(greedy(logits))
    # The generator works on 64-bit words; torch holds them as signed numbers.
    seed_word = seed - (1 << 64) if seed >> 63 else seed
    words = torch.tensor([[seed_word], [0], [position]], device=logits.device)
    return int(
        draw(
            logits,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=words[0],
            choice=words[1],
            position=words[2],
        )
    )
