"""What a client is told when something goes wrong: a status, and an error object in the words of
the protocol that it speaks.

Knows statuses and the shapes of error objects. Does not know what went wrong.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer.errors import RequestError
from deepinfer.recipe.errors import BodyError, ConversionError
from deepinfer.recipe.request import Protocol

CLIENT_LEFT = 499  # in logs and counts alone: nobody is there to read it

# status -> (type in OpenAI's protocols, type in Messages)
_TYPES: Mapping[int, tuple[str, str]] = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    405: ("invalid_request_error", "invalid_request_error"),
    408: ("timeout_error", "timeout_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    500: ("server_error", "api_error"),
    503: ("service_unavailable", "overloaded_error"),
}


@dataclass
class ApiError(Exception):
    """A request ends with this. param: the field that is wrong. code: a word for programs.

    retry_after_s: when to try again; None: it would not help.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"

    def all_headers(self) -> dict[str, str]:
        """The headers that go with it."""
        retry = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        return {**self.headers, **retry}


def from_request_error(error: RequestError) -> ApiError:
    """A mistake in a request: 400, with the field, the reason and the way out."""
    if isinstance(error, BodyError):
        param = None if error.field == "body" else error.field
        return ApiError(400, error.what, param, "invalid_request_error")
    if isinstance(error, ConversionError):
        too_long = "maximum context length" in error.what
        code = "context_length_exceeded" if too_long else "invalid_request_error"
        return ApiError(400, error.what, error.field, code)
    hint = f" ({error.hint})" if error.hint else ""
    return ApiError(400, f"{error.field}: {error.what}{hint}", error.field, "invalid_value")


def error_object(error: ApiError, protocol: Protocol | None, request_id: str) -> dict[str, Any]:
    """The error as the protocol has it; None stands for OpenAI's other routes."""
    openai_type, messages_type = _TYPES.get(error.status, _TYPES[500])
    if protocol == "messages":
        inner: dict[str, Any] = {"type": messages_type, "message": error.message}
        return {"type": "error", "error": inner, "request_id": request_id}
    return {
        "error": {
            "message": error.message,
            "type": openai_type,
            "param": error.param,
            "code": error.code,
        }
    }
