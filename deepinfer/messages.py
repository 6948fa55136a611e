"""What the engine tells whoever reads its answers. Plain data; no tensor, no text.

One `Delta` for each token, in order, several of one step where drafts were accepted; the server's
processes will send the same.
"""

from dataclasses import dataclass, field

from deepinfer.errors import RequestError
from deepinfer.outputs import FinishReason, TokenLogprob


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one continuation.

    token_id: its new token, or None when it ends without one. logprob: of that token, if asked for.
    prompt_logprobs: of prompt tokens, in order, each once; they come before or with the first
    token.
    finish_reason: set in the last Delta.
    may_stop: a stop string that ends with this token may end the text. Not where a grammar holds
        and the text is not complete.
    is_draft: the token is a draft that was accepted. num_drafted, num_verified: drafts that were
    proposed for the step, and of them verified; told with its first token.
    num_cached: prompt tokens that were found in the prefix cache.
    error: the request as a whole was refused after it was taken in; the last Delta of the choice.
    """

    request_id: str
    choice: int
    token_id: int | None = None
    logprob: TokenLogprob | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    may_stop: bool = True
    is_draft: bool = False
    num_drafted: int = 0
    num_verified: int = 0
    num_cached: int = 0
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How an engine stands, and what it did since its start. Counts from the start end in `_total`.

    running, waiting: requests; waiting ones own no memory. blocks, free_blocks, kept_blocks: all;
    those without an owner; of these, those whose content can still be found. slots, free_slots.
    prompt_tokens_total: of requests that began to run, those found in the cache included.
    output_tokens_total: emitted. preemptions_total: requests whose memory was taken.
    looked_up_tokens_total, hit_tokens_total: of the prefix cache; host_hit_tokens_total and
    disk_hit_tokens_total: of the hit ones, those that came from a tier. replayed_tokens_total: hit
    ones that ran again. evicted_blocks_total: kept blocks that were overwritten.
    host_bytes, disk_bytes: what the tiers hold. disk_faults_total: files that were torn, damaged or
    foreign, and errors of the file system. disk_is_on: None without a disk.
    draft_rounds_total: sequences in steps that drew a token for them, each counted in each step.
    drafted, verified and accepted: drafts; accepted_by_slot: of each place in a block of drafts.
    """

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    free_blocks: int = 0
    kept_blocks: int = 0
    slots: int = 0
    free_slots: int = 0
    steps_total: int = 0
    prompt_tokens_total: int = 0
    output_tokens_total: int = 0
    preemptions_total: int = 0
    looked_up_tokens_total: int = 0
    hit_tokens_total: int = 0
    host_hit_tokens_total: int = 0
    disk_hit_tokens_total: int = 0
    replayed_tokens_total: int = 0
    evicted_blocks_total: int = 0
    host_bytes: int = 0
    disk_bytes: int = 0
    disk_faults_total: int = 0
    disk_is_on: bool | None = None
    draft_rounds_total: int = 0
    drafted_total: int = 0
    verified_total: int = 0
    accepted_total: int = 0
    accepted_by_slot: tuple[int, ...] = ()
