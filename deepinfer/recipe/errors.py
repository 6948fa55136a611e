"""The two ways in which a request of the three protocols is refused (spec recipe 9).

Knows the shape of the answer. Does not know which rules there are.
"""

from deepinfer.errors import RequestError
from deepinfer.recipe.json_text import compact

_KIND = "invalid_request_error"


class ConversionError(RequestError):
    """The request was read, but breaks a rule. `what` is the message a client gets.

    Attributes: `status_code`, for HTTP; `body`, the answer's JSON text, alike in all protocols.
    """

    status_code = 400

    def __init__(
        self, what: str, *, field: str = "request", hint: str = "change the request as it says"
    ) -> None:
        super().__init__(what, field=field, hint=hint)

    @property
    def body(self) -> str:
        """The JSON text of the answer."""
        return compact(
            {"error": {"message": self.what, "type": _KIND, "param": None, "code": _KIND}}
        )


class BodyError(RequestError, ValueError):
    """The body is no JSON, or a field of it has another type than its protocol says."""

    def __init__(
        self, what: str, *, field: str = "body", hint: str = "send the JSON that the protocol wants"
    ) -> None:
        super().__init__(what, field=field, hint=hint)
