"""A request of any of the three protocols to a conversation, or to an error that says why not.

Knows which file converts which protocol. Does not know the protocols.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deepinfer.recipe.body import read_body
from deepinfer.recipe.convert_chat import convert_chat
from deepinfer.recipe.convert_messages import convert_messages
from deepinfer.recipe.convert_responses import convert_responses
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.request import ConversationRequest, ConversionOptions, Protocol

_CONVERTERS: Mapping[
    Protocol, Callable[[Mapping[str, Any], ConversionOptions], ConversationRequest]
] = {
    "chat": convert_chat,
    "responses": convert_responses,
    "messages": convert_messages,
}

# Tokens of an answer for which the request sets no limit.
_WITHOUT_THINKING = 8_192
_THINKING = 65_536
_THINKING_MAX = 131_072


def convert(
    protocol: Protocol,
    body: bytes | str | dict[str, Any],
    options: ConversionOptions = ConversionOptions(),  # noqa: B008  (frozen)
) -> ConversationRequest:
    """The request, understood (spec recipe 5, 6, 9).

    body: JSON text, or the object itself. Raises BodyError for what is no request of the protocol,
    and ConversionError for one that breaks a rule; both are RequestErrors.
    """
    return _CONVERTERS[protocol](read_body(protocol, body), options)


def resolve_max_tokens(request: ConversationRequest, prompt_tokens: int, context_limit: int) -> int:
    """The most tokens that the answer may have, at least 1 (spec recipe 5).

    prompt_tokens: tokens of the prompt, all of an image's counted. context_limit: tokens of prompt
    and answer that the model holds. Raises ConversionError if what was asked does not fit.
    """
    asked = request.inference.max_tokens
    wanted = prompt_tokens + (asked or 0)
    if wanted > context_limit:
        raise ConversionError(
            f"This model's maximum context length is {context_limit} tokens. However, you "
            f"requested {wanted} tokens ({prompt_tokens} in the messages, {asked or 0} in the "
            "completion). Please reduce the length of the messages or completion.",
            field="max_tokens",
        )
    if asked is None:
        conversation = request.conversation
        if not conversation.thinking:
            asked = _WITHOUT_THINKING
        else:
            asked = _THINKING_MAX if conversation.effort == "max" else _THINKING
    return max(1, min(asked, context_limit - prompt_tokens))
