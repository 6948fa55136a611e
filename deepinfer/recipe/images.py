"""Where a request's images come from: checked references, not yet fetched (spec recipe 5, 6).

Knows how the three protocols spell an image and what each says of a bad one. Fetches and decodes
nothing, beyond looking whether base64 is base64.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from deepinfer.recipe.conversation import ImageDetail, ImageSource
from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.fields import quoted

_MEDIA = ("image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp")
_BAD_URL = "Unsupported image_url format"
_BAD_FILE = "file_data is not a valid base64 data url"
_BLANKS = "".join(map(chr, range(0x21)))  # and other characters that cannot be seen
NO_FILE_ID = "file_id is not supported. Pass the image as a base64 data url instead."


class _DataUrl(NamedTuple):
    media_type: str
    is_base64: bool
    body: str


def image_of_url(image: Mapping[str, Any], path: str) -> ImageSource:
    """An image of Chat or Responses with `url` and `detail`: http(s), or a data URL of a known
    media type.
    """
    url: str = image["url"]
    detail: ImageDetail = image["detail"] or "high"
    if url.lower().startswith("http"):
        return ImageSource(detail=detail, url=url, path=path)
    parts = _split(url)
    if parts is None or not parts.is_base64:
        raise _refused(path, _BAD_URL)
    if parts.media_type not in _MEDIA:
        raise _refused(path, _unsupported("image"))
    if not _is_forgiving_base64(parts.body):
        raise _refused(path, "Invalid base64 data")
    return ImageSource(detail=detail, data_url=url, path=path)


def check_file(block: Mapping[str, Any], path: str) -> None:
    """Refuse a `file` block of Chat that has no data URL; `image_of_url` checks the rest of it."""
    file_id, file_data = block["file_id"], block["file_data"]
    if file_id is None and file_data is None:
        raise _refused(path, "file must have a file_id or file_data")
    if file_id is not None and file_data is not None:
        raise _refused(path, "file cannot have both file_id and file_data")
    if file_data is None:
        raise _refused(path, NO_FILE_ID)
    parts = _split(file_data)
    if parts is None:
        raise _refused(path, _BAD_FILE)
    if parts.media_type not in _MEDIA:
        raise _refused(path, _unsupported("file"))
    if parts.is_base64 and not _is_forgiving_base64(parts.body):
        raise _refused(path, _BAD_FILE)


def image_of_source(source: Mapping[str, Any], path: str) -> ImageSource:
    """The `source` of an image block of Messages: base64 or http(s)."""
    match source["type"]:
        case "base64":
            try:
                data = base64.b64decode(source["data"], validate=True)
            except (binascii.Error, ValueError):
                data = None
            if data is None or base64.b64encode(data).decode() != source["data"]:
                raise _refused(path, "base64 decode error")
            media_type = source["media_type"].replace("jpg", "jpeg")
            return ImageSource(data_url=f"data:{media_type};base64,{source['data']}", path=path)
        case "url":
            if not source["url"].lower().startswith("http"):
                raise _refused(path, f"invalid url: {quoted(source['url'])}")
            return ImageSource(url=source["url"], path=path)
        case _:
            raise _refused(path, NO_FILE_ID)


def _split(url: str) -> _DataUrl | None:
    """The parts of a data URL; None if it is none."""
    # As browsers read URLs: line breaks and tabs do not count, nor do blanks around.
    scheme, _, rest = re.sub(r"[\t\n\r]", "", url).strip(_BLANKS).partition(":")
    head, comma, body = rest.partition(",")
    if scheme.lower() != "data" or not comma:
        return None
    media_type = head.partition(";")[0].strip().lower()
    # A comma may stand in quotes before; this one does not.
    _, marker, data = url.partition("base64,")
    return _DataUrl(media_type, bool(marker), data if marker else body)


def _is_forgiving_base64(body: str) -> bool:
    """Whether browsers would read it: blanks, percent signs and absent padding are all right."""
    data = unquote_to_bytes(body.partition("#")[0]).translate(None, b"\t\n\x0c\r ")
    if len(data) % 4 == 0:
        data = re.sub(rb"={1,2}$", b"", data)
    return len(data) % 4 != 1 and re.fullmatch(rb"[A-Za-z0-9+/]*", data) is not None


def _unsupported(what: str) -> str:
    return (
        f"You have uploaded an unsupported {what}. Please make sure your {what} is valid and has "
        "one of the following formats: webp, png, jpeg, and gif."
    )


def _refused(path: str, text: str) -> ConversionError:
    return ConversionError(f"{path}: {text}", field=path.removeprefix("."))
