"""The sizes of `deepinfer bench rank --sweep`. Needs no GPU to be read."""

from deepinfer.bench.steps import Case

_PUBLISHED = 131_072  # the context of the figures that the release published
_ROWS = 4  # a token and three drafts, as there
SWEEPS: dict[str, list[Case]] = {
    "decode": [Case(requests, _PUBLISHED, _ROWS) for requests in (1, 8, 16, 32, 64, 128, 256)],
    "contexts": [
        Case(requests, context - _ROWS, _ROWS)
        for requests in (1, 32)
        for context in (8192, 32_768, _PUBLISHED, 1_048_576)
    ],
    "prompts": [Case(1, 0, rows) for rows in (4096, 8192, 16_384, 32_768, 65_536)],
}
