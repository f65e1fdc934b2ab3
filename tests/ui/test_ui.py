"""What users see and click in the Dagster UI, in a real browser on a real `gateau dev`."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from gateau_dagster.data.sample import shard_of
from tests.project import change_config, make_project, sample, write_samples
from tests.ui.browser import open_page, required_chromium
from tests.ui.server import Server, serve

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SAMPLES, SHARDS = 16, 4
LOCATION = "gateau_dagster"
GROUPS = {
    "data": ["raw_long_sft", "document_split"],
    "scoring": ["cam", "long", "short"],
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
    short_chat = {"path": "chat.json"}
    return make_project(folder, samples=SAMPLES, shards=SHARDS, training=True, short_chat=short_chat)


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
    return page.url.rsplit("/", maxsplit=1)[1][:36]


def execute_check(page: Page, server: Server, asset: str, check: str) -> None:
    """Opens a check of an asset and executes it; returns when the run it makes has ended."""
    before = len(server.runs())
    page.goto(f"{server.url}/assets/{asset}?view=checks&checkDetail={check}")
    page.get_by_role("button").filter(has_text=re.compile("^Execute$")).first.click()
    new = server.wait(lambda: server.runs()[:-before] if before else server.runs(), f"a run of the check {check}")
    assert server.ended(new[0]["runId"])["status"] == "SUCCESS"
    page.goto(f"{server.url}/assets/{asset}?view=checks&checkDetail={check}")


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
    for name in ("nightly_refresh", "out_of_date", "dead_runs"):
        visible(page, name)
    states = {state["name"]: state["instigationState"]["status"] for state in _automation(server)}
    assert states == {"nightly_refresh": "STOPPED", "out_of_date": "STOPPED", "dead_runs": "RUNNING"}


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
    assert server.ended(run["runId"])["status"] == "SUCCESS"
    page.goto(f"{server.url}/assets/raw_long_sft?view=partitions&partition=2")
    visible(page, "Materialized")
    visible(page, "fingerprint")


def test_refresh_brings_everything_up_to_date_with_one_click(refreshed: dict[str, Any], server: Server) -> None:
    assert refreshed["status"] == "SUCCESS"
    assert [run["status"] for run in server.children(refreshed["runId"])] == ["SUCCESS"]
    assert server.not_fresh() == {}, "Dagster's own labels agree"


def test_metadata_of_a_shard(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/cam?view=partitions&partition=1")
    visible(page, "Materialized")
    for key in ("dagster/partition_row_count", "fingerprint", "rejected", "samples_computed", "mean_cas"):
        visible(page, key)


def test_table_schema(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/combined_scores")
    for column in ("sample_id", "perplexity_short", "perplexity_long", "hmp", "cas", "score", "rank"):
        visible(page, column)
    visible(page, "Final score (Eq. 6); higher is chosen first.")


def test_plots_are_pictures(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/combined_scores")
    page.get_by_text("[Show Markdown]").first.click()
    image = page.get_by_role("dialog").get_by_role("img").last
    expect(image).to_be_visible()
    assert image.evaluate("image => image.complete && image.naturalWidth") > 300


def test_charts_and_first_rows_stand_in_place(refreshed: dict[str, Any], page: Page, server: Server) -> None:
    page.goto(f"{server.url}/assets/selected_subset")
    for key in ("first_rows", "path", "lowest_selected_score"):
        visible(page, key)
    charts = page.locator("img[src^='data:image/svg+xml']")
    expect(charts).to_have_count(2)
    assert charts.evaluate_all("images => images.map(image => image.complete && image.naturalWidth)") == [360, 360]


def test_a_changed_sample(refreshed: dict[str, Any], page: Page, server: Server, file: Path) -> None:
    records = [sample(number) for number in range(SAMPLES)]
    records[5]["response"] = "new ."
    write_samples(file.parent / "long.jsonl", records)
    shard = shard_of(records[5]["id"], SHARDS)
    execute_check(page, server, "raw_long_sft", "up_to_date")
    visible(page, "changed_shards")
    expect(page.get_by_text(f"1 of {SHARDS} shards are out of date").first).to_be_visible()
    visible(page, str(shard))


@pytest.mark.long
def test_a_killed_run_ends_and_the_next_goes_on(
    refreshed: dict[str, Any], page: Page, server: Server, file: Path
) -> None:
    change_config(file, scoring={"segment_length": 8})
    refresh = click_refresh(page, server)

    def at_work() -> dict[str, Any] | None:
        return next((run for run in server.children(refresh) if run["status"] == "STARTED"), None)

    child = server.wait(at_work, "the run of everything to start")
    os.kill(int(child["tags"]["gateau/process"].split("|")[1]), signal.SIGKILL)
    assert server.ended(refresh)["status"] == "FAILURE"
    assert server.ended(child["runId"])["status"] == "FAILURE", "ended by the sensor dead_runs"

    again = click_refresh(page, server)
    assert server.ended(again)["status"] == "SUCCESS"
    assert server.not_fresh() == {}
    execute_check(page, server, "cam", "up_to_date")
    visible(page, "made from what is there now")
