"""The errors a user can meet. Each says what is wrong, where, and the way out.

Knows nothing of any other part. Asserts elsewhere are for our own mistakes; these classes are for
everybody else's.
"""


class DeepInferError(Exception):
    """Base of all errors that a user can cause or must know of.

    Attributes: `what` (the reason), `where` (file, tensor, option or request field), `hint` (the
    way out).
    """

    def __init__(self, what: str, *, where: str, hint: str) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(f"{where}: {what}\n  hint: {hint}")


class ConfigError(DeepInferError):
    """An option, an environment name, or a key of config.json or the tokenizer is wrong."""


class CheckpointError(DeepInferError):
    """The weight files are missing, damaged, or not what config.json promises."""


class RequestError(DeepInferError):
    """One request is wrong; nobody else is touched. `field` names the request's field."""

    def __init__(self, what: str, *, field: str, hint: str) -> None:
        self.field = field
        super().__init__(what, where=field, hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_request_error, (self.what, self.field, self.hint))


def _rebuild_request_error(what: str, field: str, hint: str) -> RequestError:
    """Pickling drops keyword arguments, and errors cross process borders."""
    return RequestError(what, field=field, hint=hint)
