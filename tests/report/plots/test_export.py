"""Figures as bytes."""

import base64
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from gateau_dagster.report.plots import PNG_LIMIT, as_data_uri, as_markdown_image, to_png, to_svg


def _figure(*, noise: bool = False) -> Figure:
    figure = Figure(figsize=(6, 4))
    axis = figure.subplots()
    if noise:
        axis.imshow(np.random.default_rng(0).random((900, 900)), interpolation="nearest")
    axis.set_title("title")
    return figure


def test_png_is_a_picture_and_keeps_the_limit() -> None:
    plain, noisy = to_png(_figure()), to_png(_figure(noise=True))
    assert Image.open(BytesIO(plain)).size == (660, 440)
    assert len(noisy) <= PNG_LIMIT
    assert Image.open(BytesIO(noisy)).size[0] < 660


def test_png_that_cannot_be_small_is_an_error() -> None:
    with pytest.raises(ValueError, match="more than the limit of 1000"):
        to_png(_figure(noise=True), limit=1000)


def test_svg_is_the_same_every_time_and_bears_no_date() -> None:
    first, second = to_svg(_figure()), to_svg(_figure())
    assert first == second
    assert first.startswith(b"<?xml")
    assert b"<dc:date>" not in first


def test_markdown_image_gives_the_png_back_and_its_text_cannot_break_out() -> None:
    png = to_png(_figure())
    text = as_markdown_image(png, alt="a](http://x)\n[b")
    assert text.startswith("![ahttp://xb](data:image/png;base64,")
    assert base64.b64decode(text.split(",")[1][:-1]) == png


@pytest.mark.parametrize("data", [b"<svg/>", b"\x89PNG\r\n\x1a\n" + bytes(PNG_LIMIT)])
def test_markdown_image_refuses_what_does_not_belong_into_metadata(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"PNG bytes|too large"):
        as_markdown_image(data)


def test_data_uri() -> None:
    assert base64.b64decode(as_data_uri(b"<svg/>").removeprefix("data:image/svg+xml;base64,")) == b"<svg/>"
