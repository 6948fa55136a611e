"""The blocks of a content, joined to one text with the places of its images (spec recipe 5).

Knows no protocol's way to spell blocks.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from deepinfer.recipe.conversation import ImageSource, Version

BETWEEN_BLOCKS = "\n\n"
# V4 has no images; the prompt says so in the place of each.
NO_IMAGE = "[Unsupported Image]"


class Block(NamedTuple):
    """A block's text, or the placeholder of the image that it is."""

    text: str
    image: ImageSource | None = None


class Content(NamedTuple):
    """A message's text and its images, which know where in the text they are."""

    text: str
    images: tuple[ImageSource, ...] = ()


def shows_images(version: Version) -> bool:
    """Whether a model of the version sees images at all."""
    return version == "v4.1"


def joined(blocks: Iterable[Block]) -> Content:
    """The content that the blocks make."""
    texts: list[str] = []
    images: list[ImageSource] = []
    at = 0
    for block in blocks:
        if block.image is not None:
            images.append(replace(block.image, at=at))
        texts.append(block.text)
        at += len(block.text) + len(BETWEEN_BLOCKS)
    return Content(BETWEEN_BLOCKS.join(texts), tuple(images))
