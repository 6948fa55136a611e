"""References to images in requests."""

import pytest

from deepinfer.recipe.errors import ConversionError
from deepinfer.recipe.images import check_file, image_of_source, image_of_url

PNG = "data:image/png;base64,aQ=="


def refused(make, *arguments):
    with pytest.raises(ConversionError) as caught:
        make(*arguments, ".messages[0]")
    return caught.value.what.removeprefix(".messages[0]: ")


@pytest.mark.parametrize(
    "url",
    [
        PNG,
        "data:image/PNG;base64,",
        " DATA:image/webp; charset=x;base64,aa%61 a\n",
        "data:image/jpg;base64,aaa",
    ],
)
def test_data_urls(url):
    """An image that every browser shows is refused."""
    image = image_of_url({"url": url, "detail": None}, ".messages[0]")
    assert (image.data_url, image.url, image.detail) == (url, None, "high")
    check_file({"file_id": None, "file_data": url}, "p")


def test_addresses():
    """The detail or the place of an image is lost."""
    image = image_of_url({"url": "HTTP://x", "detail": "low"}, "input[3]")
    assert (image.url, image.detail, image.path) == ("HTTP://x", "low", "input[3]")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://x", "Unsupported image_url format"),
        ("data:image/png,aa", "Unsupported image_url format"),
        ("data:image/png;BASE64,aa", "Unsupported image_url format"),
        ("data:image/png;base64,a", "Invalid base64 data"),
        ("data:image/png;base64,a_-=", "Invalid base64 data"),
        ("data:image/png;base64,aa==aa==", "Invalid base64 data"),
    ],
)
def test_bad_urls(url, text):
    """Something that is no image, or an address inside the server, is left to the fetcher."""
    assert refused(image_of_url, {"url": url, "detail": None}) == text


def test_other_media():
    """A document is taken for an image."""
    bmp = {"url": "data:image/bmp;base64,!", "detail": None}
    assert refused(image_of_url, bmp).startswith("You have uploaded an unsupported image.")


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ((None, None), "file must have a file_id or file_data"),
        (("x", PNG), "file cannot have both file_id and file_data"),
        (("x", None), "file_id is not supported. Pass the image as a base64 data url instead."),
        ((None, "http://x"), "file_data is not a valid base64 data url"),
        ((None, "data:image/png;base64,!"), "file_data is not a valid base64 data url"),
    ],
)
def test_bad_files(block, text):
    """A client is not told that only data URLs work as files."""
    assert refused(check_file, dict(zip(("file_id", "file_data"), block, strict=True))) == text


def test_sources_of_messages():
    """The three ways of Messages to name an image are mixed up."""
    source = {"type": "base64", "media_type": "image/jpg", "data": "aQ=="}
    assert image_of_source(source, "p").data_url == "data:image/jpeg;base64,aQ=="
    assert image_of_source({"type": "url", "url": "https://x"}, "p").url == "https://x"
    assert refused(image_of_source, {"type": "url", "url": 'a"'}) == 'invalid url: "a\\""'
    assert refused(image_of_source, source | {"data": "aa=="}) == "base64 decode error"
    assert refused(image_of_source, {"type": "file"}).startswith("file_id is not supported.")
