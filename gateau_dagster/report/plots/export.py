"""Figures as bytes: SVG for the report, small PNG for Dagster's pages."""

import base64
from io import BytesIO

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

PNG_LIMIT = 150_000
"""Bytes: Dagster keeps metadata in its event log, where large values make every page slow."""


def to_svg(figure: Figure) -> bytes:
    """The figure as an SVG document (UTF-8). Equal figures give equal bytes: no date, no random ids."""
    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "gateau", "svg.fonttype": "path"}):
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def to_png(figure: Figure, *, limit: int = PNG_LIMIT) -> bytes:
    """The figure as a PNG of at most `limit` bytes, as sharp as that allows.

    Raises ValueError when even 40 dots per inch do not fit.
    """
    size = 0
    for dpi in (110, 90, 72, 56, 40):
        buffer = BytesIO()
        figure.set_dpi(dpi)
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
        size = buffer.tell()
        if size <= limit:
            return buffer.getvalue()
    raise ValueError(f"the plot takes {size} bytes at 40 dots per inch, more than the limit of {limit}")


def as_markdown_image(png: bytes, *, alt: str = "plot") -> str:
    """Markdown that shows the PNG from a data URI, for Dagster's metadata.

    Raises ValueError when `png` is not a PNG or above `PNG_LIMIT`.
    """
    if not png.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("as_markdown_image wants PNG bytes, as to_png gives")
    if len(png) > PNG_LIMIT:
        raise ValueError(f"a picture of {len(png)} bytes is too large for metadata (limit {PNG_LIMIT})")
    safe = "".join(character for character in alt if character not in "[]()\n")
    return f"![{safe}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})"


def as_data_uri(svg: bytes) -> str:
    """An SVG document as the `src` of an image: nothing in it can reach into the page around it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
