"""THE SEAM: what crosses between the host and the device in one step. Numpy arrays only.

The host says which rows run (`StepPlan`), then how their tokens are chosen (`SamplePlan`); the
device answers (`StepResult`). Afterwards the host may ask for drafts (`DraftPlan`, `Drafts`). The
host never sees a tensor; the device never hears of a request.

Letters: B sequences in the step, T rows, R sampled rows, V vocabulary, A anchors, n drafts of each.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

NO_IDS: Int32 = np.empty(0, np.int32)


@dataclass(frozen=True)
class StepPlan:
    """Which rows run. Sequences are in order; the rows of a sequence are consecutive.

    slot_ids: int32 [B], the sequence's slot.
    num_computed: int32 [B], tokens of the sequence whose keys and values are stored already; its
        first row stands at this position.
    num_rows: int32 [B], its rows in this step, at least 1.
    block_tables: int32 [B, max blocks], its blocks in order; -1 beyond its last.
    decoder_starts: int32 [B], the first position whose window keys the second half of the layers
        may see; 0 is all of them (deepinfer.config.replay).
    window_starts: int32 [B], the same for all layers: a replay starts there, and nothing before it
        was rebuilt. 0 without one.
    entry_starts: int32 [B], entries of tokens before this position are in the blocks already, maybe
        shared with others: they are read, and not written again.
    token_ids: int32 [T], the rows' tokens.
    sample_rows: int32 [R], rows whose next token is drawn, ascending. A sequence that verifies k
        drafts has 1 + k of them: that of its last token and those of the drafts, which are its last
        k rows.
    score_rows, score_ids: int32 [P] each, rows whose logits are only looked at, and the token that
        follows each of them in the prompt (prompt_logprobs).
    score_top: how many of the likeliest tokens to report for each score row.
    follows: int32 [B], or empty if all is known. Where it is not -1, the sequence's last token is
        that of sequence number `follows` among those that the step before drew for: the device
        adds the drafts that were accepted there to num_computed, and puts that token and the drafts
        after it into the sequence's rows, all of which are sample rows.
    known_slots, known_positions, known_ids: int32 [K] each, tokens that a slot is told before the
        step: those before a replay's first row, which no row of the slot ran.
    """

    slot_ids: Int32
    num_computed: Int32
    num_rows: Int32
    block_tables: Int32
    decoder_starts: Int32
    window_starts: Int32
    entry_starts: Int32
    token_ids: Int32
    sample_rows: Int32
    score_rows: Int32
    score_ids: Int32
    score_top: int = 0
    follows: Int32 = field(default_factory=lambda: NO_IDS)
    known_slots: Int32 = field(default_factory=lambda: NO_IDS)
    known_positions: Int32 = field(default_factory=lambda: NO_IDS)
    known_ids: Int32 = field(default_factory=lambda: NO_IDS)


@dataclass(frozen=True)
class TokenLists:
    """A list of token ids for some of the rows, one after another (CSR): row_ids [N], token_ids
    [N].

    weights: float32 [N], a number for each pair, or None where only membership counts.
    """

    row_ids: Int32
    token_ids: Int32
    weights: Float32 | None = None


@dataclass(frozen=True)
class SamplePlan:
    """How the R sampled rows choose; every array has one element a row unless said otherwise.

    temperature: float32; 0 chooses the likeliest token.
    top_k: int32; 0 is off. top_p, min_p: float32; 1 and 0 are off.
    seeds: int64, a seed's 64 bits. choices: int32, number of the continuation. positions: int64,
        the absolute position of the token to be drawn.
    repetition: float32, 1 is off. presence, frequency: float32, 0 is off.
    seen: tokens of prompt and output of the rows whose repetition penalty is on, each once.
    produced: output tokens of the rows with a presence or frequency penalty, each once, weights are
        counts.
    bias: tokens whose logits are raised by weights. banned: tokens that may not be drawn.
    forced: int32, the token to take whatever the logits say; -1 is none.
    num_logprobs: int32, likeliest tokens to report, 0 is none; -1 reports nothing, not even the
        chosen token's log-probability.
    mask_rows: int32 [M], rows that may only draw certain tokens, ascending. masks: int32
        [M, ceil(V / 32)], bit i of word w allows token 32 w + i.
    draft_ids: int32 [R], the draft that follows the row in this step, which the row's token
        verifies: it stays if they are equal. -1 where none follows; empty if none does anywhere.
    is_rejection: bool [R], drafts are accepted by rejection: a row's token depends on its draft,
        and has the row's distribution all the same. Elsewhere, and at temperature 0, the token is
        what it would be without drafts. Empty if no row is.
    """

    temperature: Float32
    top_k: Int32
    top_p: Float32
    min_p: Float32
    seeds: Int64
    choices: Int32
    positions: Int64
    repetition: Float32
    presence: Float32
    frequency: Float32
    seen: TokenLists
    produced: TokenLists
    bias: TokenLists
    banned: TokenLists
    forced: Int32
    num_logprobs: Int32
    mask_rows: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    masks: Int32 = field(default_factory=lambda: np.empty((0, 0), np.int32))
    draft_ids: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    is_rejection: Bool = field(default_factory=lambda: np.empty(0, np.bool_))


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of rows. Natural logarithms of the model's own distribution.

    chosen: float32 [n], of the row's token. ranks: int32 [n], 1 + tokens likelier than it.
    top_ids int32 [n, K], top_logprobs float32 [n, K]: the likeliest tokens, best first, the lower
    id
        first on a tie.
    """

    chosen: Float32
    ranks: Int32
    top_ids: Int32
    top_logprobs: Float32


@dataclass(frozen=True)
class StepResult:
    """What came out.

    token_ids: int32 [R], the drawn tokens. bad_rows: bool [R], the row's logits were not finite:
        its token means nothing and its request must end.
    logprobs: of the sampled rows, or None when no row asked. prompt_scores: of the score rows, or
    None.
    """

    token_ids: Int32
    bad_rows: Bool
    logprobs: Scores | None = None
    prompt_scores: Scores | None = field(default=None)


@dataclass(frozen=True)
class DraftPlan:
    """For which sequences of the step that was just sampled drafts are proposed.

    sequences: int32 [A], their numbers among those that a token was drawn for, ascending. Each is
        drafted for after its last token as far as its rows tell: the one in the first row that
        differs from its draft. No row of that token has run.
    num_drafts: n, at least 1.
    """

    sequences: Int32
    num_drafts: int


@dataclass(frozen=True)
class Drafts:
    """What was proposed.

    token_ids: int32 [A, n]; draft i follows the anchor as the token number 1 + i.
    confidence: float32 [A, n], estimated chance that a draft is accepted if those before it are.
    """

    token_ids: Int32
    confidence: Float32
