"""The evidence map in a browser without scripts and without a network: a token leads to its segment, by keyboard."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from playwright.sync_api import Locator, Page, expect

from gateau_dagster.data.sample import Sample
from gateau_dagster.explanation.evidence import evidence
from gateau_dagster.explanation.maps import EvidenceMaps
from gateau_dagster.features.report.build import build_report
from gateau_dagster.features.report.inputs import compare
from gateau_dagster.plots import Drawing
from tests.features.report.builders import LENGTH, inputs, raw, rows_of
from tests.kit import tiny_models
from tests.ui.browser import open_page, required_chromium

pytestmark = pytest.mark.browser


def page_with_maps(file: Path) -> Path:
    tokenizer: Any = tiny_models.tokenizer()

    def maps(samples: Sequence[Sample]) -> EvidenceMaps:
        gives = [(2, 0, 0.9), (20, 1, 0.8)]
        rows = {one.sample_id: (one, rows_of(tokenizer, one, cut=9, cut_short=80, gives=gives)) for one in samples}
        made = {name: evidence(one, found, tokenizer, segment_length=LENGTH) for name, (one, found) in rows.items()}
        return EvidenceMaps(maps=made)

    given = inputs(4, raw=raw(4, context=tiny_models.text(1, 300)), evidence=maps)
    drawn = {"scores": Drawing(figure=Figure(), alt="")}
    file.write_text(build_report(given, compare(given), drawn), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    file = page_with_maps(tmp_path_factory.mktemp("report") / "report.html")
    with open_page(required_chromium()) as opened:
        browser = opened.context.browser
        assert browser is not None
        without = browser.new_context(java_script_enabled=False, offline=True).new_page()
        without.goto(f"file://{file}")
        yield without


def opened_card(page: Page) -> Locator:
    card = page.locator("#samples > details").first
    if card.get_attribute("open") is None:
        card.locator("summary").first.press("Enter")
    return card


@pytest.mark.parametrize("width", [1200, 400])
def test_a_token_leads_to_its_segment(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(page.url.partition("#")[0])
    card = opened_card(page)
    tokens, target = card.locator("a.tk"), card.locator(".seg.named")
    assert (tokens.count(), target.count()) == (2, 2)
    for place in range(2):
        expect(target.nth(place)).to_have_css("outline-style", "none")
        tokens.nth(place).press("Enter")
        expect(target.nth(place)).to_be_in_viewport(ratio=0.5)
        expect(target.nth(place)).to_have_css("outline-style", "solid")
        expect(tokens.nth(place)).to_be_in_viewport()
    back = target.nth(1).get_by_role("link")
    back.press("Enter")
    expect(tokens.first).to_be_in_viewport()


def test_choosing_a_token_lights_its_segment_up_and_no_other(page: Page) -> None:
    card = opened_card(page)
    tokens, named = card.locator("a.tk"), card.locator(".seg.named")
    tokens.nth(0).focus()
    expect(named.nth(0)).not_to_have_css("box-shadow", "none")
    expect(named.nth(1)).to_have_css("box-shadow", "none")


def test_the_map_is_told_to_a_screen_reader(page: Page) -> None:
    card = opened_card(page)
    region = card.get_by_role("region", name="Context: ")
    expect(region).to_have_count(1)
    expect(region).to_have_attribute("tabindex", "0")
    tokens = card.get_by_role("group", name="Response: ").get_by_role("link")
    assert tokens.count() == 2 and all("segment" in (link.get_attribute("title") or "") for link in tokens.all())
    card.locator(".figures summary").press("Enter")
    assert card.locator(".figures").get_by_role("rowheader").count() > 2
