"""Every picture is there when its part of the run is, and is a drawing."""

import base64
from typing import Any
from xml.etree import ElementTree

import pytest

from gateau_dagster.plotting import to_svg
from gateau_dagster.report.build import pictures
from gateau_dagster.report.comparison import compare
from gateau_dagster.report.drawings import Drawing, drawings
from tests.evaluation.builders import heldout_table

from .builders import config, inputs, scores

ALWAYS = {"scores", "terms", "agreement", "lengths"}


def _drawn(count: int = 30, **changes: Any) -> dict[str, Drawing]:
    given = inputs(count, **changes)
    return drawings(given, compare(given))


def test_all_pictures_are_svg_documents_without_links() -> None:
    drawn = _drawn()
    evaluated = {"evaluation/heldout: held-out perplexity", "evaluation/needle: needle in a haystack"}
    assert set(drawn) == ALWAYS | {"auroc", "training", "effort"} | evaluated
    shown = pictures(drawn)
    for uri in (uri for picture in shown.values() for uri in (picture.wide, picture.narrow)):
        head, data = uri.split(",")
        assert head == "data:image/svg+xml;base64"
        root = ElementTree.fromstring(base64.b64decode(data))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        links = [value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")]
        assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert all(picture.alt for picture in shown.values())


def test_parts_that_were_not_made_have_no_picture() -> None:
    nothing = {"heldout": heldout_table().clear()}
    absent = {"training_log": [], "evaluations": nothing, "efforts": {"cam": [{}]}}
    assert set(_drawn(config=config(), **absent)) == ALWAYS


@pytest.mark.parametrize("changes", [{"count": 1}, {"combined_scores": scores(30, equal=True)},
                                     {"combined_scores": scores(30, segments=1)}])  # fmt: skip
def test_extreme_runs_are_drawn(changes: dict[str, Any]) -> None:
    drawn = _drawn(**changes)
    assert set(drawn) >= ALWAYS
    assert all(to_svg(drawing.figure) for drawing in drawn.values())
