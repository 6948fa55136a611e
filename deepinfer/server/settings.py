"""How to serve: what the command line says about HTTP. Plain data.

Knows nothing of the engine's own options, which are deepinfer.config.engine's.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """How to serve.

    host, port: where to listen; port 0 takes a free one. served_names: what requests may call the
        model; empty is its folder's name.
    api_keys: any of them opens the API; without one it is open. allow_origins: whose pages may call
        it from a browser, "*" for all.
    max_waiting, max_waiting_tokens: requests, and tokens of their prompts, that may wait for their
        first token; more are turned away with 429.
    max_body_bytes, body_timeout_s: of a request's body. drain_s: how long running requests may go
        on after SIGTERM.
    log_prompts: write prompts into the log. official_sampling: sampling values as the released
        recipe has them, whatever was sent.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_names: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    max_waiting: int = 1024
    max_waiting_tokens: int = 2**22
    max_body_bytes: int = 32 * 2**20
    body_timeout_s: float = 60.0
    drain_s: float = 30.0
    log_prompts: bool = False
    official_sampling: bool = False
