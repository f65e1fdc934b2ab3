"""Remakes the pictures of the README: `.venv/bin/python scripts/screenshots.py [FOLDER]`.

FOLDER (default: the current one) is where `gateau demo` was called. Needs chromium (or $CHROMIUM)
and the development requirements. Starts the Dagster UI there, writes docs/images/*.png, ends the UI.

With `--real REPORT SAMPLE` it only writes evidence_real.png: the map of one sample in the report of any store.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
GROUPS = ("input", "data", "perplexity", "scoring", "selection", "training", "evaluation")
REPORT = {"report": (1400, 1000), "report_narrow": (400, 1000)}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


def main() -> None:
    """One picture after the other."""
    parser = argparse.ArgumentParser(description="Remakes docs/images from a finished demo.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument("--real", nargs=2, metavar=("REPORT", "SAMPLE"), help="write evidence_real.png only")
    options = parser.parse_args()
    folder = options.folder.resolve()
    report = folder / "gateau_demo" / "gateau_store" / "report.html"
    if not options.real and not report.exists():
        sys.exit(f"There is no finished demo in {folder}: run `gateau demo` there first.")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs chromium: apt-get install chromium, or CHROMIUM=/path/to/it")
    IMAGES.mkdir(parents=True, exist_ok=True)
    if options.real:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            take_real(browser, Path(options.real[0]).resolve(), options.real[1])
            browser.close()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gateau_dagster.cli", "dev", "--config", "demo", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_it_serves(url)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            take_report(browser, report)
            take_evidence(browser, report)
            take_viewer(browser, report.with_name("explore.html"))
            take_ui(browser.new_page(), url)
            browser.close()
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def take_report(browser: Browser, report: Path) -> None:
    """As wide as a screen and as narrow as a phone, in both themes."""
    for name, (width, height) in REPORT.items():
        for theme in THEMES:
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
            page.goto(report.as_uri())
            shoot(page, name if theme == "light" else f"{name}_{theme}")
            page.close()


def take_evidence(browser: Browser, report: Path) -> None:
    """The card of the first sample, with the segment that one of its words leads to."""
    page = browser.new_page(viewport={"width": 1240, "height": 1000})
    page.goto(report.as_uri())
    card = page.locator("#samples > details", has=page.locator("a.tk")).first
    card.locator("summary").first.click()
    card.locator("a.tk").first.click()
    page.wait_for_timeout(500)
    card.screenshot(path=IMAGES / "evidence.png")
    page.close()


def take_real(browser: Browser, report: Path, sample: str) -> None:
    """A sample's texts and map without its scores, as narrow as a phone can show."""
    page = browser.new_page(viewport={"width": 620, "height": 1000}, device_scale_factor=1.5)
    page.goto(report.as_uri())
    card = page.locator("#samples > details", has_text=sample)
    card.locator("summary").first.click()
    card.locator("a.tk").first.click()
    texts = card.get_by_text("Instruction", exact=True).bounding_box()
    end = card.get_by_text("tokens, with their probabilities").bounding_box()
    assert texts is not None and end is not None
    top = texts["y"] - 8
    clip: FloatRect = {"x": 0, "y": top + page.evaluate("scrollY"), "width": 620, "height": end["y"] - top - 24}
    page.screenshot(path=IMAGES / "evidence_real.png", clip=clip, full_page=True)
    page.close()


def take_viewer(browser: Browser, viewer: Path) -> None:
    """Around the cut, with a sample beside the list."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(viewer.as_uri())
    page.get_by_role("button", name="Around the cut").click()
    page.locator("tbody a").first.click()
    shoot(page, "explore")
    page.close()


def take_ui(page: Page, url: str) -> None:
    """The page of an asset, of a partition, of a check, of a run, and the lineage."""
    # So high that all of the asset's figures and rows are on it.
    page.set_viewport_size({"width": 1500, "height": 1560})
    page.goto(f"{url}/assets/selected_subset")
    shoot(page, "asset", left=240)
    page.set_viewport_size({"width": 1400, "height": 760})
    page.goto(f"{url}/assets/cam?view=partitions&partition=1")
    shoot(page, "partition")
    page.goto(f"{url}/assets/cam?view=checks&checkDetail=up_to_date")
    shoot(page, "checks")
    page.goto(f"{url}/runs")
    page.locator("a[href*='/runs/']").first.click()
    shoot(page, "run")
    # So large that the whole graph fits: the page does not zoom out further by itself.
    page.set_viewport_size({"width": 1800, "height": 1400})
    page.goto(f"{url}/asset-groups?expanded={'%2C'.join(f'global%40global%3A{group}' for group in GROUPS)}")
    page.get_by_text("Hide navigation").click()
    shoot(page, "lineage", left=370)


def shoot(page: Page, name: str, *, left: int = 0) -> None:
    """Waits until the page has drawn itself, and writes docs/images/<name>.png without its `left` pixels."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2500)
    size = page.viewport_size
    assert size is not None
    clip: FloatRect = {"x": left, "y": 0, "width": size["width"] - left, "height": size["height"]}
    page.screenshot(path=IMAGES / f"{name}.png", clip=clip)


def _wait_until_it_serves(url: str) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            urllib.request.urlopen(f"{url}/server_info", timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    sys.exit("The Dagster UI did not start within 90 s.")


if __name__ == "__main__":
    main()
