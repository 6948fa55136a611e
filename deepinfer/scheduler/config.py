"""`SchedulerConfig`, the bounds of a step and of a sequence; `Counters` and `Totals`."""

from dataclasses import dataclass

from deepinfer.errors import ConfigError, RequestError


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler keeps to.

    max_num_seqs: most running requests. max_num_batched_tokens: most rows of a step.
    max_model_len: most tokens of prompt and output together.
    max_catching_up: requests that may share a step's rows when those do not suffice for all. With
        4, a short prompt does not wait behind up to three long ones; with more, each ends later.
    Raises ConfigError if the running requests could not all have a row.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_catching_up: int = 4

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"{self.max_num_batched_tokens} rows a step for {self.max_num_seqs} running "
                "requests, each of which takes one at least",
                where="max_num_batched_tokens",
                hint=f"raise it to {self.max_num_seqs}, or lower max_num_seqs",
            )

    def check_prompt(self, num_tokens: int) -> None:
        """Raise RequestError for a prompt that is empty or leaves no room for a token."""
        if not num_tokens:
            raise RequestError(
                "the prompt has no tokens", field="prompt", hint="give at least one token"
            )
        if num_tokens >= self.max_model_len:
            raise RequestError(
                f"the prompt has {num_tokens} tokens, prompt and output may have "
                f"{self.max_model_len}",
                field="prompt",
                hint="shorten the prompt, or raise max_model_len",
            )


@dataclass(slots=True)
class Totals:
    """Counted from the start. num_prompt_tokens: of requests that began to run, each once.
    num_output_tokens: emitted."""

    num_preemptions: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """How it stands now; preemptions are counted from the start."""

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_free_slots: int
    num_preemptions: int
