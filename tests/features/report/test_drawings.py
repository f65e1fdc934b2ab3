"""Figures: each is there when its part of the run is, and is readable on light and dark, on a screen and on a phone."""

import base64
import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from gateau_dagster.features.report.build import NARROW, build_report, pictures, stack, themed
from gateau_dagster.features.report.drawings import drawings
from gateau_dagster.features.report.inputs import ReportInputs, compare
from gateau_dagster.plots import Drawing
from gateau_dagster.plotting import DARK, label, new_figure, to_svg
from tests.features.evaluation.builders import heldout_table
from tests.features.report.builders import Page, inputs, methods, scores
from tests.kit.project import configured

ALWAYS = {"scores", "terms", "agreement", "lengths"}


def _drawn(count: int = 30, **changes: Any) -> dict[str, Drawing]:
    given = inputs(count, **changes)
    return drawings(given, compare(given))


@pytest.fixture(scope="module")
def whole() -> tuple[ReportInputs, dict[str, Drawing]]:
    """A run of three methods, and all of its figures: drawing takes most of the time."""
    given = inputs(methods=methods(names=("gateau", "ladm", "length")))
    return given, drawings(given, compare(given))


def test_nothing_is_loaded_from_outside_and_nothing_runs(whole: tuple[ReportInputs, dict[str, Drawing]]) -> None:
    given, drawn = whole
    page = Page(build_report(given, compare(given), drawn))
    scopes = [attributes.get("scope") for attributes in page.attributes("th")]
    assert scopes and {*scopes} == {"col", "row"}, "every head of a table says what it heads"
    for tag, attributes in page.tags:
        assert tag not in {"script", "link", "iframe", "object", "embed", "base", "form"}
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            value = None if (tag, name) == ("a", "href") else attributes.get(name)  # a link loads nothing
            assert value is None or value.startswith(("#", "data:image/svg+xml;base64,")), (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in page.styles
    assert "@import" not in page.styles
    policy = next(m["content"] for m in page.attributes("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_all_pictures_are_svg_documents_without_links(whole: tuple[ReportInputs, dict[str, Drawing]]) -> None:
    drawn = whole[1]
    evaluated = {"evaluation/heldout: held-out perplexity", "evaluation/needle: needle in a haystack"}
    of_methods = {"method_profiles", "method_correlations", "method_lengths", "disputed"}
    assert set(drawn) - of_methods == ALWAYS | {"auroc", "training", "training_speed"} | evaluated
    shown = pictures(drawn)
    for uri in (uri for picture in shown.values() for uri in (picture.wide, picture.narrow)):
        root = document(uri)
        assert root.tag == f"{_SVG}svg"
        links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert all(picture.alt for picture in shown.values())


def test_parts_that_were_not_made_have_no_picture() -> None:
    nothing = {"heldout": heldout_table().clear()}
    absent = {"training_log": [], "evaluations": nothing, "efforts": {"cam": [{}]}}
    assert set(_drawn(config=configured(), **absent)) == ALWAYS


@pytest.mark.long
@pytest.mark.parametrize("changes", [{"count": 1}, {"combined_scores": scores(30, equal=True)},
                                     {"combined_scores": scores(30, segments=1)}])  # fmt: skip
def test_extreme_runs_are_drawn(changes: dict[str, Any]) -> None:
    drawn = _drawn(**changes)
    assert set(drawn) >= ALWAYS
    assert all(to_svg(drawing.figure) for drawing in drawn.values())


_SVG = "{http://www.w3.org/2000/svg}"


def panels(count: int) -> Figure:
    """`count` panels; all but the first leave the names of the rows to their neighbour."""
    figure, axes = new_figure("A title that is much too long for one line of a phone, so it breaks", columns=count)
    for number, axis in enumerate(axes):
        axis.barh(["one", "two"], [1, 2])
        label(axis, x="x", y="y", title=f"panel {number}")
        axis.tick_params(axis="y", labelleft=number == 0)
        axis.yaxis.label.set_visible(number == 0)
    return figure


def size(uri: str) -> tuple[float, float]:
    """Width and height in points."""
    root = document(uri)
    return float(root.attrib["width"].removesuffix("pt")), float(root.attrib["height"].removesuffix("pt"))


def document(uri: str) -> ElementTree.Element:
    head, data = uri.split(",")
    assert head == "data:image/svg+xml;base64"
    return ElementTree.fromstring(base64.b64decode(data))


@pytest.mark.parametrize("count", [1, 3])
def test_panels_stand_below_each_other_on_a_phone(count: int) -> None:
    picture = pictures({"one": Drawing(figure=panels(count), alt="text")})["one"]
    (wide, height), (narrow, tall) = size(picture.wide), size(picture.narrow)
    assert narrow == pytest.approx(72 * NARROW) and narrow < wide / 2
    assert tall == pytest.approx(count * height)
    assert picture.alt == "text"


def test_a_stacked_panel_has_the_names_that_its_neighbour_had() -> None:
    figure = panels(3)
    to_svg(figure)
    stack(figure)
    to_svg(figure)
    boxes = [axis.get_position() for axis in figure.axes]
    assert all(above.y0 > below.y1 for above, below in pairwise(boxes))
    for axis in figure.axes:
        assert [text.get_text() for text in axis.get_yticklabels()] == ["one", "two"]
        assert axis.yaxis.label.get_visible()
    edges = [text.get_window_extent().x1 for axis in figure.axes for text in (axis.title, axis.xaxis.label)]
    assert max(edges) <= figure.bbox.width


def test_a_matrix_of_many_columns_keeps_room_for_its_figures() -> None:
    figure, (axis,) = new_figure("matrix")
    axis.imshow(np.zeros((3, 20)))
    stack(figure)
    assert figure.get_figwidth() / 20 > 0.4


def test_panels_with_a_common_scale_can_be_stacked() -> None:
    figure, axes = new_figure("grids", columns=2)
    for axis in axes:
        image = axis.imshow(np.zeros((3, 3)))
    figure.colorbar(image, ax=list(axes))
    stack(figure)
    to_svg(figure)
    assert axes[0].get_position().y0 > axes[1].get_position().y1


def test_neutral_colours_are_others_on_a_dark_page() -> None:
    found = themed(to_svg(panels(1))).decode()
    root = ElementTree.fromstring(found)
    assert root.tag == f"{_SVG}svg" and root[-1].tag == f"{_SVG}style", "it stays a document"
    drawing, _, style = found.partition("<style>svg{")
    assert not [colour for colour in DARK if colour in drawing], "all are variables"
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    for colour, other in DARK.items():
        name = next(iter(re.findall(rf"(--c\d+):{colour}", light)))
        assert f"{name}:{other}" in dark
        assert f"var({name})" in drawing or colour not in to_svg(panels(1)).decode()
