"""A prompt in the making: pieces of text, each known to be a control token or not.

Knows spellings and templates. Does not know what a prompt says, or in which order.

A control token is one because the renderer wrote it as such, never because of how a text is
spelled: that is how nobody forges a turn by writing one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from string import Formatter
from typing import NamedTuple

from deepinfer.recipe.conversation import ImageSource, SpecialTokens, Version
from deepinfer.recipe.prompt_text import MARKUP_WORDS

BLANK_LINE = "\n\n"
_CONTROL_NAMES = frozenset(field.name for field in fields(SpecialTokens))


class Piece(NamedTuple):
    """Some text of a prompt. control: it stands for one control token."""

    text: str
    control: bool = False


@dataclass(frozen=True)
class Dialect:
    """How a model version spells things."""

    version: Version
    tokens: SpecialTokens

    @property
    def words(self) -> Mapping[str, str]:
        """The words of the tool markup."""
        return MARKUP_WORDS[self.version]


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt with what its text does not say.

    special_ranges: (start, end) in code points of each control token, ascending and disjoint; the
    same spelling anywhere else is text. image_sources: in the order of the placeholders. There may
    be fewer placeholders than images: a message whose text lacks them keeps its images.
    """

    prompt: str
    special_ranges: tuple[tuple[int, int], ...]
    image_sources: tuple[ImageSource, ...] = ()


def fill(dialect: Dialect, template: str, **values: str) -> Iterator[Piece]:
    """The pieces of a template of prompt_text; what is in `values` stays text."""
    for literal, field, _, _ in Formatter().parse(template):
        yield Piece(literal)
        if field in _CONTROL_NAMES:
            yield Piece(getattr(dialect.tokens, field), control=True)
        elif field is not None:
            yield Piece(values[field] if field in values else dialect.words[field])


def with_placeholders(
    content: str, sources: Sequence[ImageSource], dialect: Dialect
) -> Iterator[Piece]:
    """A message's text, in which the images' tokens are control tokens.

    Where a source does not say at which character its token stands, the next one spelled is it.
    """
    end, token = 0, dialect.tokens.image
    for source in sources:
        at = content.find(token, end) if source.at is None else source.at
        if at < 0:
            break
        yield Piece(content[end:at])
        yield Piece(token, control=True)
        end = at + len(token)
    yield Piece(content[end:])


def joined(parts: Iterable[Iterable[Piece]], separator: str = BLANK_LINE) -> Iterator[Piece]:
    """The pieces of all parts, with a separator between two parts."""
    for index, part in enumerate(parts):
        if index:
            yield Piece(separator)
        yield from part


def lines(parts: Sequence[Iterable[Piece]], dialect: Dialect) -> Iterator[Piece]:
    """Each part on a line of its own; V4.1 writes an empty line for no parts at all."""
    if parts or dialect.version == "v4.1":
        yield from joined(parts, "\n")
        yield Piece("\n")


def assembled(pieces: Iterable[Piece], image_sources: Iterable[ImageSource]) -> RenderedPrompt:
    """The pieces, one after the other."""
    texts: list[str] = []
    ranges: list[tuple[int, int]] = []
    end = 0
    for piece in pieces:
        start, end = end, end + len(piece.text)
        texts.append(piece.text)
        if piece.control:
            ranges.append((start, end))
    return RenderedPrompt("".join(texts), tuple(ranges), tuple(image_sources))
