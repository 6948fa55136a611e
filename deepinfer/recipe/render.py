"""A conversation to a prompt (spec recipe 4).

Knows that there are two versions, and leaves each to its own file. Does not know requests or ids.
"""

from collections.abc import Callable, Mapping

from deepinfer.recipe.conversation import Conversation, SpecialTokens, Version
from deepinfer.recipe.pieces import Dialect, RenderedPrompt
from deepinfer.recipe.render_v4 import render_v4
from deepinfer.recipe.render_v41 import render_v41

_RENDERERS: Mapping[Version, Callable[[Conversation, Dialect], RenderedPrompt]] = {
    "v4": render_v4,
    "v4.1": render_v41,
}


def render(
    conversation: Conversation,
    version: Version,
    special_tokens: SpecialTokens = SpecialTokens(),  # noqa: B008  (frozen)
) -> RenderedPrompt:
    """The prompt that asks a model of `version` to go on with the conversation.

    Takes any order of messages and checks none; that is for whoever makes the conversation. Raises
    TypeError for a schema that is no JSON value.
    """
    return _RENDERERS[version](conversation, Dialect(version, special_tokens))
