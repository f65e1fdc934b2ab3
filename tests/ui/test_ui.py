"""Pages and clicks of the Dagster UI, in a real browser on a real `gateau dev`, on real text.

Every day: its pages, and a shard that is made by click. Whole refreshes are long.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from playwright.sync_api import Page, expect

from gateau_dagster.assets.runs.launching import LOCATION
from gateau_dagster.data.sample import Sample, shard_of
from gateau_dagster.explanation.maps import evidence_maps
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.storage.documents import read_document
from tests.kit.project import make_project, write_model, write_samples
from tests.kit.tiny_models import tokenizer
from tests.ui.browser import open_page, required_chromium
from tests.ui.real_text import record
from tests.ui.server import Server, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SAMPLES, SHARDS = 16, 4
SHARDED = ("raw_long_sft", "perplexity/short", "perplexity/long", "cam")
GROUPS = {
    "input": ["long_sft", "short_chat", "long_model", "short_model"],
    "data": ["raw_long_sft", "document_split"],
    "perplexity": ["long", "short"],
    "scoring": ["cam"],
    "selection": ["combined_scores", "selected_subset"],
    "training": ["short_chat_mix", "training_mix", "checkpoint"],
    "evaluation": ["heldout", "needle", "report"],
}
CHAT = [
    {"id": f"c{n}", "conversations": [{"from": "human", "value": f"tell about {n}"}, {"from": "gpt", "value": "the ."}]}
    for n in range(4)
]


@pytest.fixture(scope="module")
def executable() -> str:
    return required_chromium()


@pytest.fixture(scope="module")
def file(executable: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ui")
    (folder / "chat.json").write_text(json.dumps(CHAT))
    more: dict[str, Any] = {"short_chat": {"path": "chat.json"}, "scoring": {"max_length": 1024, "segment_length": 64}}
    file = make_project(folder, samples=SAMPLES, shards=SHARDS, training=True, **more)
    write_samples(folder / "long.jsonl", [record(number) for number in range(SAMPLES)])
    for seed, (name, window) in enumerate({"short": 256, "long": 1024}.items(), start=1):
        write_model(folder / name, seed=seed, window=window, tokenizer=tokenizer())
    return file


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    with serve(file) as found:
        yield found


@pytest.fixture(scope="module")
def page(executable: str, server: Server) -> Iterator[Page]:
    with open_page(executable) as found:
        yield found


@pytest.fixture(scope="module")
def refreshed(page: Page, server: Server) -> dict[str, Any]:
    """The run that one click on `refresh` makes, ended."""
    return server.ended(click_refresh(page, server))


def click_refresh(page: Page, server: Server) -> str:
    """Job, Launchpad, Launch Run: the id of the run."""
    page.goto(f"{server.url}/locations/{LOCATION}/jobs/refresh/playground")
    page.get_by_role("button", name="Launch Run").click()
    page.wait_for_url(re.compile("/runs/"))
    run = page.url.rsplit("/", maxsplit=1)[1][:36]
    look_away(page)
    return run


def look_away(page: Page) -> None:
    """While a run is waited for: its page draws and asks the server all the time, a third of this module's work."""
    page.goto("about:blank")


def visible(page: Page, text: str) -> None:
    expect(page.get_by_text(text, exact=True).filter(visible=True).first).to_be_visible()


def test_the_first_page_asks_for_nothing(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/runs")
    visible(page, "Lineage")
    page.wait_for_timeout(1500)
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_lineage_shows_all_assets_in_their_groups(page: Page, server: Server) -> None:
    expanded = "%2C".join(f"global%40global%3A{group}" for group in GROUPS)
    page.goto(f"{server.url}/asset-groups?expanded={expanded}")
    for group, names in GROUPS.items():
        visible(page, group)
        for name in names:
            visible(page, name)


@pytest.mark.parametrize(
    ("asset", "group", "kinds"),
    [
        ("raw_long_sft", "data", ["Parquet", "Polars"]),
        ("cam", "scoring", ["PyTorch", "Hugging Face"]),
        ("checkpoint", "training", ["PyTorch", "Hugging Face", "deepspeed"]),
    ],
)
def test_definition_of_an_asset(page: Page, server: Server, asset: str, group: str, kinds: list[str]) -> None:
    page.goto(f"{server.url}/assets/{asset}")
    for text in [group, *kinds]:
        visible(page, text)


def test_automation_is_there_and_off(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/automation")
    for name in ("nightly_refresh", "out_of_date", "dead_runs", "inputs"):
        visible(page, name)
    states = {state["name"]: state["instigationState"]["status"] for state in _automation(server)}
    off, on = ("nightly_refresh", "out_of_date"), ("dead_runs", "inputs")
    assert states == {**dict.fromkeys(off, "STOPPED"), **dict.fromkeys(on, "RUNNING")}


def _automation(server: Server) -> list[dict[str, Any]]:
    selector = f'repositorySelector: {{repositoryName: "__repository__", repositoryLocationName: "{LOCATION}"}}'
    fields = "{results {name %s {status}}}"
    schedules = f"schedulesOrError({selector}) {{... on Schedules {fields % 'scheduleState'}}}"
    sensors = f"sensorsOrError({selector}) {{... on Sensors {fields % 'sensorState'}}}"
    found = server.graphql(f"{{{schedules} {sensors}}}")
    return [
        {"name": one["name"], "instigationState": one.get("scheduleState") or one.get("sensorState")}
        for kind in ("schedulesOrError", "sensorsOrError")
        for one in found[kind]["results"]
    ]


@pytest.mark.long
def test_a_shard_is_materialised_by_click(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/raw_long_sft")
    page.get_by_role("button", name="Materialize").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Select a partition").click()
    page.keyboard.type("2")
    page.get_by_role("menuitem", name="2").last.click()
    page.keyboard.press("Escape")
    dialog.get_by_role("button", name=re.compile("^Launch")).click()
    run = server.wait(lambda: [run for run in server.runs() if run["jobName"].startswith("__ASSET")], "its run")[0]
    look_away(page)
    assert server.ended(run["runId"])["status"] == "SUCCESS"
    page.goto(f"{server.url}/assets/raw_long_sft?view=partitions&partition=2")
    visible(page, "Materialized")
    visible(page, "fingerprint")


@pytest.mark.long
def test_refresh_brings_everything_up_to_date_with_one_click(refreshed: dict[str, Any], server: Server) -> None:
    assert refreshed["status"] == "SUCCESS"
    assert [run["status"] for run in server.children(refreshed["runId"])] == ["SUCCESS"]
    assert server.not_fresh() == {}, "Dagster's own labels agree"


@pytest.mark.long
def test_metadata_of_a_shard(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/cam?view=partitions&partition=1")
    visible(page, "Materialized")
    for key in ("dagster/partition_row_count", "fingerprint", "rejected", "samples_computed", "mean_cas"):
        visible(page, key)


@pytest.mark.long
def test_table_schema(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/combined_scores")
    for column in ("sample_id", "perplexity_short", "perplexity_long", "hmp", "cas", "score", "rank"):
        visible(page, column)
    visible(page, "Final score (Eq. 6); higher is chosen first.")


@pytest.mark.long
def test_plots_are_pictures(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/combined_scores")
    page.get_by_text("[Show Markdown]").first.click()
    image = page.get_by_role("dialog").get_by_role("img").last
    expect(image).to_be_visible()
    assert image.evaluate("image => image.complete && image.naturalWidth") > 300


@pytest.mark.long
def test_charts_and_first_rows_stand_in_place(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/selected_subset")
    for key in ("first_rows", "path", "lowest_selected_score"):
        visible(page, key)
    charts = page.locator("img[src^='data:image/svg+xml']")
    expect(charts).to_have_count(2)
    assert charts.evaluate_all("images => images.map(image => image.complete && image.naturalWidth)") == [360, 360]


class Edited(NamedTuple):
    """A sample that was given another response after everything had been made, and what there was before."""

    sample_id: str
    shard: str
    before: dict[tuple[str, str | None], int]


@pytest.fixture(scope="module")
def edited(refreshed: dict[str, Any], file: Path) -> Edited:
    before, records = stored(file), [record(number) for number in range(SAMPLES)]
    records[5]["response"] = f"It is not said. {records[6]['response']}"
    write_samples(file.parent / "long.jsonl", records)
    sample_id = records[5]["id"]
    return Edited(sample_id, str(shard_of(sample_id, SHARDS)), before)


@pytest.mark.long
def test_a_changed_sample_shows_on_the_graph(edited: Edited, page: Page, server: Server) -> None:
    """Wait for the sensor `inputs`, which looks every half minute."""
    look_away(page)
    stale = {*SHARDED, "combined_scores", "report"}  # recorded one after the other
    server.wait(lambda: stale <= server.out_of_date(), "what the edit makes stale", seconds=180)
    assert "short_chat_mix" not in server.out_of_date()
    page.goto(f"{server.url}/assets/raw_long_sft?view=lineage&lineageScope=upstream&lineageDepth=1")
    zoom, shown = page.get_by_role("img", name="zoom_in"), page.get_by_text("2 / 3 Passed", exact=True)
    expect(page.get_by_text("long_sft", exact=True).first).to_be_visible()
    for _ in range(6):  # nodes show their checks when they are large enough
        page.wait_for_timeout(700)
        if not shown.count():
            zoom.click()
    expect(shown.first).to_be_visible()
    page.goto(f"{server.url}/assets/raw_long_sft?view=checks&checkDetail=up_to_date")
    visible(page, "changed_shards")
    expect(page.get_by_text(f"1 of {SHARDS} shards are out of date").first).to_be_visible()
    visible(page, edited.shard)


@pytest.mark.long
def test_refresh_is_terminated_with_the_run_that_it_made(edited: Edited, page: Page, server: Server) -> None:
    refresh = click_refresh(page, server)
    work = server.at_work(refresh)
    page.goto(f"{server.url}/runs/{refresh}")
    page.get_by_role("button", name="Terminate").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Terminate")).click()
    assert server.ended(refresh)["status"] == server.ended(work["runId"])["status"] == "CANCELED"
    for run, other in ((refresh, work["runId"]), (work["runId"], refresh)):
        said, links = server.events(run)
        assert f"raw_long_sft: shard {edited.shard} changed" in said
        assert links == [other]


@pytest.mark.long
def test_it_is_executed_again_and_makes_exactly_the_edited_shard(
    edited: Edited, page: Page, server: Server, file: Path
) -> None:
    terminated = server.runs("refresh")[0]["runId"]
    page.goto(f"{server.url}/runs/{terminated}")
    page.get_by_role("button", name="Re-execute all").click()
    parent = {"dagster/parent_run_id": terminated}
    found = server.wait(lambda: [run for run in server.runs("refresh") if parent.items() <= run["tags"].items()], "it")
    look_away(page)
    refresh = found[0]
    assert server.ended(refresh["runId"])["status"] == "SUCCESS"
    assert server.not_fresh() == {}
    after = stored(file)
    other = {key for key in after if key[1] not in {None, edited.shard}}
    assert {key for key in after if edited.before[key] == after[key]} == other
    state = state_of(config=load_project(file))
    rows = state.store.read("raw_long_sft", edited.shard)
    row = rows.row(by_predicate=pl.col("sample_id") == edited.sample_id, named=True)
    changed = Sample(**{name: row[name] for name in ("sample_id", "source", "context", "instruction", "response")})
    shown = evidence_maps(state, [changed]).maps[edited.sample_id]
    assert "".join(token.text for token in shown.tokens) == changed.response
    assert changed.response.startswith("It is not said.")
    assert edited.sample_id in read_document(state.store, "report.html")


def stored(file: Path) -> dict[tuple[str, str | None], int]:
    """When each table, and the report, was written."""
    root = Path(load_project(file).located_root)
    found: dict[tuple[str, str | None], int] = {
        (asset, str(shard)): (root / asset / f"{shard}.parquet").stat().st_mtime_ns
        for asset in SHARDED
        for shard in range(SHARDS)
    }
    return found | {("report", None): (root / "report.html").stat().st_mtime_ns}


@pytest.mark.long
def test_what_refresh_makes_stands_on_the_timeline(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/overview/activity/timeline")
    for job in ("refresh", "everything"):
        expect(page.get_by_role("link", name=job).first).to_be_visible()


@pytest.mark.long
def test_what_refresh_makes_is_retried(refreshed: dict[str, Any], server: Server) -> None:
    [work] = server.children(refreshed["runId"])
    again = server.execute_again(work["runId"], "ALL_STEPS")
    assert server.ended(again)["status"] == "SUCCESS"
