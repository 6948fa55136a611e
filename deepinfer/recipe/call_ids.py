"""The ids of tool calls that answers make (spec recipe 8).

Knows how an id is written. Does not know calls.
"""

import random
import string
from collections.abc import Callable

# The index of a call in its answer, and whether the model thought without writing a word.
CallIds = Callable[[int, bool], str]

# In an id it says that no reasoning belongs to the call. The released recipe, where it insists on
# reasoning in a history, lets a turn pass whose calls have it.
NO_REASONING_MARK = "ET_"
_LETTERS = string.ascii_letters + string.digits


def random_call_id(index: int, without_reasoning: bool) -> str:
    """The id of call `index`, counted from 0.

    Unlikely to be found twice, which is all that is asked of it: it is no secret.
    """
    mark = NO_REASONING_MARK if without_reasoning else ""
    letters = "".join(random.choices(_LETTERS, k=20))
    return f"call_{index:02}_{mark}{letters}{random.randrange(10_000):04}"
