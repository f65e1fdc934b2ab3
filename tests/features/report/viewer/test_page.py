"""The viewer in a real browser, opened from a disk: lists, samples, evidence, keys, narrow screens, hostile texts."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import polars as pl
import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from gateau_dagster.explanation.evidence import Evidence, evidence
from gateau_dagster.explanation.maps import DependedSpan, Depends, EvidenceMaps, SpanStrip, Stretch
from gateau_dagster.features.report.inputs import ReportInputs
from gateau_dagster.models.prompt import build_prompt
from tests.features.report.builders import LENGTH, inputs, raw, rows_of, sample, scores
from tests.features.report.viewer.builders import method_scores, write_viewer
from tests.kit import tiny_models
from tests.ui.browser import open_page, required_chromium

pytestmark = pytest.mark.browser

COUNT = 130
HOSTILE = "</script><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>\u202e"
MAPPED, LACKING, GIVER = "s000003", "s000004", 2
RESERVED = scores(COUNT).sort("rank")["sample_id"][2]
CONTEXT = f"{HOSTILE} {tiny_models.text(1, 60)}"


def mapped() -> Evidence:
    """The last token comes from a far segment."""
    one = sample(CONTEXT, "one two", MAPPED)
    tokenizer = tiny_models.tokenizer()
    last = len(build_prompt(tokenizer, one, max_length=10**6).response) - 1
    rows = rows_of(tokenizer, one, gives=[(GIVER, last, 0.9)], cut=3, cut_short=3)
    return evidence(one, rows, tokenizer, segment_length=LENGTH)


def own_map() -> SpanStrip:
    """Return a strip over the hostile text's beginning and the context's last quarter."""
    end = len(CONTEXT)
    stretches = [Stretch(start=0, end=end // 4, added=0.5), Stretch(start=3 * (end // 4), end=end, added=-0.25)]
    return SpanStrip(methods=["ladm"], adds="CDS", sample=mapped().sample, stretches=stretches, elsewhere=0.125)


@pytest.fixture(scope="module")
def given() -> ReportInputs:
    is_mapped = pl.col("sample_id") == MAPPED
    texts = {"context": CONTEXT, "instruction": HOSTILE, "response": "one two"}
    changed = [pl.when(is_mapped).then(pl.lit(text)).otherwise(name).alias(name) for name, text in texts.items()]
    kinds = pl.DataFrame({"sample_id": [MAPPED, LACKING], "dependency": ["one_far", "near"]})
    return inputs(COUNT, raw=raw(COUNT).with_columns(*changed).lazy(), reserved=[RESERVED], dependencies=kinds)


@pytest.fixture(scope="module")
def place(given: ReportInputs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewer with space")
    span = DependedSpan(start=1024, end=1100, gain=0.75, tokens=16, beginning=HOSTILE)
    depends = {MAPPED: Depends(dependency="one_far", spans=[span]), LACKING: Depends(dependency="near", spans=None)}
    told = EvidenceMaps(maps={MAPPED: mapped()}, strips={MAPPED: [own_map()]}, depends=depends)
    return write_viewer(folder, given, method_scores(given, "ladm"), told)


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with open_page(required_chromium()) as found:
        yield found


@pytest.fixture
def page(browser: Page, place: Path) -> Iterator[Page]:
    """Opened anew; nothing may fail in its script, nor be stopped by its policy."""
    failures: list[str] = []
    note = lambda message: failures.append(message.text) if message.type == "error" else None  # noqa: E731
    browser.on("console", note)
    browser.set_viewport_size({"width": 1500, "height": 950})
    browser.goto("about:blank")
    browser.goto(place.as_uri())
    expect(browser.locator("#where")).to_contain_text(f"of {COUNT} samples")
    yield browser
    browser.remove_listener("console", note)
    assert failures == []
    assert browser.title() == "GATEAU: all samples"


def ids(page: Page) -> list[str]:
    return page.locator("#rows td.id a").all_inner_texts()


def by_rank(given: ReportInputs) -> list[str]:
    assert given.combined_scores is not None
    return given.combined_scores.sort("rank")["sample_id"].to_list()


def open_sample(page: Page, sample_id: str) -> Locator:
    page.goto(f"{page.url.partition('#')[0]}#{quote(sample_id)}")
    expect(page.locator("#sample-title")).to_have_text(sample_id)
    return page.locator("#sample")


def test_first_last_and_around_the_cut(page: Page, given: ReportInputs) -> None:
    order, chosen = by_rank(given), given.selected_subset.height
    assert ids(page) == order[:50]
    page.get_by_role("button", name="Last").click()
    expect(page.locator("#where")).to_have_text("101–130 of 130 samples")
    assert ids(page) == order[100:]
    page.get_by_role("button", name="Around the cut").click()
    expect(page.locator(".cutline")).to_be_visible()
    before = page.locator("tr:has(+ .cutline) a")
    assert before.inner_text() == order[chosen], "one of the first cannot be chosen"


@pytest.mark.long
def test_other_orders(page: Page, given: ReportInputs) -> None:
    first = page.locator("#rows td.id a").first
    lengths = dict(given.scores.select("sample_id", "context_tokens").iter_rows())
    page.select_option("#order", "longest")
    expect(first).to_have_text(max(lengths, key=lambda name: (lengths[name], -int(name[1:]))))
    page.select_option("#order", "disputed")
    expect(page.locator("#score-name")).to_have_text("disputed")
    spreads = [float(text) for text in page.locator("#rows td.score").all_inner_texts()]
    assert spreads == sorted(spreads, reverse=True) and spreads[0] > spreads[-1]
    page.select_option("#order", "rank")
    page.select_option("#ranking", label="ladm")
    scores = method_scores(given, "ladm")["ladm"].sort("score", descending=True, nulls_last=True)
    expect(first).to_have_text(scores["sample_id"][0])
    page.get_by_role("button", name="Last").click()
    expect(page.locator("#rows td.id a").last).to_have_text("s000000")
    expect(page.locator("#rows td.score").last).to_have_text("–")


def test_a_click_on_a_column_sorts_by_it_and_a_second_one_turns_lengths_round(page: Page) -> None:
    def column(name: str) -> list[str]:
        return page.locator(f"#rows td.{name}").all_inner_texts()

    for name in ("context", "response"):
        for direction in ("descending", "ascending", "descending"):
            page.get_by_role("columnheader", name=name).get_by_role("button").click()
            expect(page.locator(f"th.{name}")).to_have_attribute("aria-sort", direction)
            lengths = [int(text.replace(",", "")) for text in column(name) if text != "–"]
            assert lengths == sorted(lengths, reverse=direction == "descending")
            assert name == "response" or lengths[0] != lengths[-1]
    page.get_by_role("columnheader", name="source").get_by_role("button").click()
    expect(page.locator("th[aria-sort]")).to_have_text("source")
    assert column("source") == sorted(column("source"))
    page.get_by_role("columnheader", name="rank").get_by_role("button").click()
    expect(page.locator("#order")).to_have_value("rank")


@pytest.mark.long
def test_by_source_by_length_and_by_what_became_of_it(page: Page, given: ReportInputs) -> None:
    where = page.locator("#where")
    page.select_option("#choice", "selected")
    expect(where).to_have_text("1–13 of 13 samples")
    page.select_option("#choice", "all")
    page.select_option("#source", label="far")
    far = given.scores.filter(source="far")
    expect(where).to_have_text(f"1–{far.height} of {far.height} samples")
    page.locator("#low").fill("2000")
    page.locator("#low").press("Enter")
    longer = far.filter(pl.col("context_tokens") >= 2000).height
    expect(where).to_have_text(f"1–{longer} of {longer} samples")
    page.locator("#low").fill("")
    shortest = far["response_tokens"].min()
    page.locator("#response-high").fill(str(shortest))
    page.locator("#response-high").press("Enter")
    brief = far.filter(pl.col("response_tokens") <= shortest).height
    expect(where).to_have_text(f"1–{min(brief, 50)} of {brief} samples")
    page.get_by_role("button", name="Reset").click()
    expect(where).to_have_text("1–50 of 130 samples")


def test_search_by_id_by_instruction_and_by_text(page: Page) -> None:
    where = page.locator("#where")
    page.fill("#text", "S000042")
    expect(where).to_have_text("1–1 of 1 sample")
    page.fill("#text", "question 12")
    expect(where).to_have_text("1–11 of 11 samples")
    page.fill("#text", "end 77")
    expect(where).to_have_text("No sample is like that.")
    page.get_by_role("button", name="Search whole texts").click()
    expect(where).to_have_text("1–1 of 1 sample")
    assert ids(page) == ["s000077"]


@pytest.mark.long
def test_a_sample_with_its_ranks(page: Page, given: ReportInputs) -> None:
    name = by_rank(given)[4]
    page.get_by_role("link", name=name).click()
    shown = page.locator("#sample")
    expect(shown.locator("h2")).to_have_text(name)
    expect(shown.get_by_role("row", name=re.compile("^gateau 5 of 130"))).to_be_visible()
    [terms] = given.scores.filter(sample_id=name).select("hmp_term", "cas_term").rows()
    sums = re.findall(r"· (?:long-model|far-segment) gain ([−\d.e]+)", shown.locator("dl").first.inner_text())
    assert [float(value.replace("−", "-")) for value in sums] == pytest.approx(terms, rel=1e-3)
    row = raw(COUNT).filter(sample_id=name).row(0, named=True)
    expect(shown).to_contain_text(row["instruction"])
    expect(shown.locator(".context")).to_have_text(row["context"])
    shown.get_by_role("button", name="Next").click()
    expect(shown.locator("h2")).to_have_text(by_rank(given)[5])


def box(element: Locator) -> FloatRect:
    found = element.bounding_box()
    assert found is not None
    return found


def test_a_method_s_own_map_is_as_long_as_the_context(page: Page) -> None:
    own = open_sample(page, MAPPED).get_by_label("Map by ladm")
    whole = box(own.locator(".strip"))
    first, last = (box(bar) for bar in own.locator(".strip span").all())
    assert first["x"] - whole["x"] < 3 and first["width"] == pytest.approx(whole["width"] / 4, rel=0.05)
    assert whole["x"] + whole["width"] - last["x"] - last["width"] < 3
    most = own.locator("li").all_inner_texts()
    assert [text.split(":")[0] for text in most] == ["0.5000", "−0.2500"]
    assert HOSTILE[:9] in most[0]
    expect(own).to_contain_text("Instruction and response add 0.1250")


def test_a_sample_without_a_method_s_map_has_no_strip(page: Page) -> None:
    assert open_sample(page, "s000004").locator(".strip-map").count() == 0


def test_what_the_response_depends_on_is_shown_and_can_be_chosen(page: Page) -> None:
    shown = open_sample(page, MAPPED)
    expect(shown.locator(".depends")).to_have_text("The response depends on one_far: one far segment.")
    cells = shown.locator(".spans tbody").locator("th, td").all_inner_texts()
    assert cells[:3] == ["1,025 to 1,100", "0.750", "16"] and cells[3].startswith("</script>")
    expect(open_sample(page, LACKING)).to_contain_text("reports no places of its tokens")
    assert open_sample(page, "s000005").locator(".depends").count() == 0
    page.get_by_role("button", name="Close").click()
    page.select_option("#choice", label="near")
    expect(page.locator("#where")).to_have_text("1–1 of 1 sample")
    assert ids(page) == [LACKING]


def test_a_token_shows_its_segment(page: Page) -> None:
    shown, found = open_sample(page, MAPPED), mapped()
    tokens = shown.locator(".token")
    assert "".join(tokens.all_inner_texts()) == "one two"
    tokens.last.click()
    segment = found.segments[GIVER]
    chosen = shown.locator(".segment.chosen")
    expect(chosen).to_have_text(CONTEXT[segment.start : segment.end])
    expect(chosen).to_be_in_viewport()
    expect(shown.locator("#detail")).to_contain_text("0.900")
    expect(page.get_by_role("status")).to_contain_text(f"segment {GIVER + 1} of")
    assert [int(one.get_attribute("data-segment") or "") for one in shown.locator(".segment.named").all()] == [GIVER]
    expect(shown.locator("del")).to_have_text(found.sample.context[: found.unseen].strip().replace("\u202e", "\ufffd"))


@pytest.mark.long
def test_keys(page: Page, given: ReportInputs) -> None:
    order = by_rank(given)
    page.keyboard.press("j")
    expect(page.locator("#sample-title")).to_have_text(order[0])
    page.keyboard.press("j")
    expect(page.locator("#sample-title")).to_have_text(order[1])
    page.keyboard.press("Escape")
    expect(page.locator("#sample")).to_be_hidden()
    expect(page.get_by_role("link", name=order[1])).to_be_focused()
    page.keyboard.press("n")
    expect(page.locator("#where")).to_have_text("51–100 of 130 samples")
    page.keyboard.press("/")
    page.keyboard.type("jk")
    expect(page.locator("#text")).to_have_value("jk")
    open_sample(page, MAPPED).locator(".token").first.focus()
    page.keyboard.press("End")
    expect(page.locator(".token").last).to_be_focused()
    expect(page.locator(".segment.chosen")).to_be_visible()


def test_texts_are_never_markup(page: Page) -> None:
    shown = open_sample(page, MAPPED)
    safe = HOSTILE.replace("\u202e", "\ufffd")
    expect(shown).to_contain_text(safe)
    assert shown.locator("img, script").count() == 0
    page.fill("#text", MAPPED)
    expect(page.locator("#where")).to_have_text("1–1 of 1 sample")
    expect(page.locator(".opening")).to_contain_text(safe[:40])


def test_400_pixels_and_a_dark_screen(page: Page) -> None:
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    for opened in (False, True):
        if opened:
            open_sample(page, MAPPED).locator(".token").last.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#rows tr").first).to_be_visible()


def test_what_is_missing_is_said(browser: Page, place: Path, tmp_path: Path) -> None:
    browser.goto(f"{place.as_uri()}#nobody")
    expect(browser.get_by_role("alert")).to_contain_text("There is no sample nobody here.")
    alone = tmp_path / "explore.html"
    alone.write_bytes(place.read_bytes())
    browser.goto(alone.as_uri())
    expect(browser.get_by_role("alert")).to_contain_text("copy the folder explore")
