"""How soon the viewer of all samples is there in a headless Chromium, and what is clicked in it.

    .venv/bin/python benchmarks/explorer.py --out build/benchmarks/explorer.json

Makes the page of so many samples (made-up ids, texts and scores; three presets and four further methods) on a disk and
opens it from there, each round in a new browser. `open` is the time from the address being typed to the list being
drawn; the others are from the click to what it shows. Needs chromium (or $CHROMIUM) and the development requirements.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common_measure import Spread, machine, say, show, table, verdict, write_json
from playwright.sync_api import Page, sync_playwright

from gateau_dagster.config import PRESETS, Config
from gateau_dagster.data.sample import Sample
from gateau_dagster.explore.data_files import DataFiles
from gateau_dagster.explore.index import index_content
from gateau_dagster.explore.page import build_page
from gateau_dagster.explore.rankings import rankings
from gateau_dagster.explore.sample_pages import PAGE_ROWS, Shard, openings, sample_content, shard_files
from gateau_dagster.report.evidence_card import EvidenceMaps
from gateau_dagster.report.inputs import ReportInputs
from gateau_dagster.storage.files import Files

TARGET_SECONDS = 2.0
SHARDS, SOURCES = 16, 8
METHODS = ("far_gain", "ladm", "length", "perplexity")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
_WORDS = 40


def make_viewer(folder: Path, samples: int) -> Path:
    """The page of so many samples; returns its path."""
    drawn = np.random.default_rng(0)
    raw = _raw(samples, drawn)
    combined = _combined_scores(raw["sample_id"], drawn)
    chosen = combined.sort("rank").head(samples // 10).select("sample_id", "score", "rank")
    inputs = ReportInputs(
        config=_config(),
        raw=raw.lazy(),
        combined_scores=combined,
        selected_subset=chosen,
        generated_at=datetime.now(UTC),
    )
    methods = {name: _scores(raw["sample_id"], drawn) for name in METHODS}
    data, shards = DataFiles(Files(str(folder))), []
    for number, part in enumerate(raw.iter_slices(-(-samples // SHARDS))):
        shards.append(shard_files(f"{number:02d}", part.height, {}))
        _write_shard(shards[-1], part, data)
    found = rankings(inputs.config, combined, methods)
    index = data.put("index", index_content(inputs, found, shards, data.put))
    page = folder / "explore.html"
    page.write_text(build_page(inputs, index), encoding="utf-8")
    return page


def _write_shard(shard: Shard, part: pl.DataFrame, data: DataFiles) -> None:
    data.write(shard.openings, openings(part["instruction"]))
    for name, rows in zip(shard.pages, part.iter_slices(PAGE_ROWS), strict=True):
        data.write(name, [sample_content(Sample(**row), EvidenceMaps()) for row in rows.iter_rows(named=True)])


def _config() -> Config:
    models = {"short": {"path": "pair/short"}, "long": {"path": "pair/long"}}
    return Config.model_validate({"long_sft": {"path": "data/long.jsonl"}, "models": models})


def _raw(samples: int, drawn: np.random.Generator) -> pl.DataFrame:
    words = np.array(["".join(map(chr, letters)) for letters in drawn.integers(97, 123, (500, 6))])
    texts = [" ".join(words[places]) for places in drawn.integers(0, 500, (samples, _WORDS))]
    return pl.DataFrame(
        {
            "sample_id": [f"sample-{number:09d}" for number in range(samples)],
            "source": [f"source {number % SOURCES}" for number in range(samples)],
            "context": [f"{text} " * 8 for text in texts],
            "instruction": texts,
            "response": texts,
        }
    )


def _combined_scores(ids: pl.Series, drawn: np.random.Generator) -> pl.DataFrame:
    """As of COMBINED_SCORES what the viewer reads."""
    columns: dict[str, Any] = {"sample_id": ids}
    for preset in PRESETS:
        score = drawn.random(ids.len())
        rank = np.empty(ids.len(), dtype=np.int32)
        rank[np.argsort(-score)] = np.arange(1, ids.len() + 1)
        columns |= {f"score_{preset}": score, f"rank_{preset}": rank}
        columns |= {f"{kind}_{preset}": drawn.random(ids.len()) for kind in ("hmp", "cas")}
    columns |= {"score": columns["score_robust"], "rank": columns["rank_robust"]}
    lengths = {
        "context_tokens": drawn.integers(500, 65_000, ids.len()),
        "response_tokens": drawn.integers(5, 900, ids.len()),
    }
    return pl.DataFrame(columns | lengths)


def _scores(ids: pl.Series, drawn: np.random.Generator) -> pl.DataFrame:
    return pl.DataFrame({"sample_id": ids, "score": drawn.random(ids.len())})


def measure(page: Path, chromium: str) -> dict[str, float]:
    """Seconds of one round, in a new browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        try:
            return dict(_timed(browser.new_page(), page))
        finally:
            browser.close()


def _timed(browser: Page, page: Path) -> Iterator[tuple[str, float]]:
    def timed(name: str, condition: str) -> tuple[str, float]:
        while not browser.evaluate(f"Boolean({condition})"):  # not wait_for_function: the page forbids its eval
            time.sleep(0.005)
        return name, time.perf_counter() - started

    rows = "document.querySelectorAll('#rows tr').length"
    started = time.perf_counter()
    browser.goto(page.as_uri(), wait_until="commit")
    yield timed("open", f"document.documentElement?.dataset.ready && {rows} >= 50")
    browser.wait_for_timeout(1000)
    started = time.perf_counter()
    browser.locator("#rows a").first.click()
    yield timed("a sample", "document.querySelector('#sample .text')")
    first = "document.querySelector('#rows a').textContent"
    before = browser.evaluate(first)
    started = time.perf_counter()
    browser.select_option("#ranking", "4")
    yield timed("another ranking", f"{first} !== {before!r}")
    started = time.perf_counter()
    browser.select_option("#order", "disputed")
    yield timed("most disputed", "document.querySelector('#score-name').textContent === 'disputed'")
    started = time.perf_counter()
    browser.fill("#text", before)
    yield timed("search by id", f"{first} === {before!r} && document.querySelectorAll('#rows tr').length === 1")


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints, writes JSON; 1 where the target is missed."""
    parser = argparse.ArgumentParser(description="Opening the viewer of all samples.")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs chromium: apt-get install chromium, or CHROMIUM=/path/to/it")
    with tempfile.TemporaryDirectory(prefix="gateau-explorer-") as folder:
        started = time.perf_counter()
        page = make_viewer(Path(folder), given.samples)
        made = time.perf_counter() - started
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        say(f"made in {made:.1f} s, {size / 2**20:.0f} MiB")
        rounds = [measure(page, chromium) for _ in range(given.rounds)]
    spreads = {name: Spread.of([each[name] for each in rounds]) for name in rounds[0]}
    show(table(["seconds", "median (quartiles)"], [(name, spread.show()) for name, spread in spreads.items()]))
    slowest = max(each["open"] for each in rounds)
    show(verdict("slowest opening, seconds", slowest, TARGET_SECONDS, at_most=True))
    content = {"samples": given.samples, "made_seconds": made, "bytes": size, "rounds": rounds, "spreads": spreads}
    write_json(given.out, {**content, "machine": machine()})
    return int(slowest > TARGET_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
