"""The report in a real browser: dark, on a phone, on paper."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.features.report.builders import html_of, inputs, methods
from tests.ui.browser import open_page, required_chromium

pytestmark = [pytest.mark.browser, pytest.mark.long]

_BACKGROUND = "getComputedStyle(document.body).backgroundColor"
_OUTSIDE = """() => [...document.querySelectorAll("figure img")].filter(image => {
    const box = image.getBoundingClientRect();
    return box.left < 0 || box.right > innerWidth || !image.naturalWidth;
}).length"""
# The colour in the corner of a figure, which the figure itself has to choose.
_CORNER = """async () => {
    const image = document.querySelector("figure img");
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = 4;
    canvas.getContext("2d").drawImage(image, 0, 0);
    return [...canvas.getContext("2d").getImageData(0, 0, 1, 1).data];
}"""
_FOLDED = "[...document.querySelectorAll('details')].filter(each => !each.open).map(each => each.clientHeight)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(html_of(inputs(methods=methods())))
    with open_page(required_chromium(), width=1400, height=1000) as found:
        found.goto(file.as_uri())
        yield found


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_cut_off_at_any_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 1000})
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(_OUTSIDE) == 0
    assert page.locator("figure img").count() > 5


def test_page_and_figures_are_dark_for_who_wants_it(page: Page) -> None:
    found = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(300)
        found[theme] = page.evaluate(_BACKGROUND), page.evaluate(_CORNER)
    assert found["light"][0] == "rgb(255, 255, 255)" != found["dark"][0]
    assert found["light"][1] == [255, 255, 255, 255]
    assert max(found["dark"][1][:3]) < 60


def test_what_is_folded_is_open_on_paper_and_light(page: Page) -> None:
    page.emulate_media(media="screen", color_scheme="dark")
    folded = page.evaluate(_FOLDED)
    page.emulate_media(media="print", color_scheme="dark")
    printed = page.evaluate(_FOLDED)
    assert len(folded) > 20
    assert all(after > before for before, after in zip(folded, printed, strict=True))
    assert page.evaluate(_BACKGROUND) == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
