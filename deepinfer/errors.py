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

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders.
        return _rebuild, (type(self), {"what": self.what, "where": self.where, "hint": self.hint})


class ConfigError(DeepInferError):
    """An option, an environment name, or a key of config.json or the tokenizer is wrong."""


class CheckpointError(DeepInferError):
    """The weight files are missing, damaged, or not what config.json promises."""


class DeviceError(DeepInferError):
    """A device has no memory left, or stopped working: what it held is lost."""


class RequestError(DeepInferError):
    """One request is wrong; nobody else is touched. `field` names the request's field."""

    def __init__(self, what: str, *, field: str, hint: str) -> None:
        self.field = field
        super().__init__(what, where=field, hint=hint)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), {"what": self.what, "field": self.field, "hint": self.hint})


def _rebuild(kind: type[DeepInferError], said: dict[str, str]) -> DeepInferError:
    """Unpickle: an error's arguments have names, which pickling would drop."""
    return kind(**said)
