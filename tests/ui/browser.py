"""Debian's chromium, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect, sync_playwright

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_MILLISECONDS = 20_000
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium() -> str | None:
    """$CHROMIUM, or the first that is on PATH."""
    return os.environ.get("CHROMIUM") or next((found for name in _NAMES if (found := shutil.which(name))), None)


def required_chromium() -> str:
    """Its path; without it the test fails, or is skipped where GATEAU_WITHOUT_BROWSER=1 says so."""
    found = chromium()
    if found is not None:
        return found
    if os.environ.get("GATEAU_WITHOUT_BROWSER") == "1":
        pytest.skip("GATEAU_WITHOUT_BROWSER=1")
    pytest.fail("needs chromium: apt-get install chromium (or CHROMIUM=/path/to/it, or GATEAU_WITHOUT_BROWSER=1)")


@contextmanager
def open_page(executable: str, *, width: int = 1500, height: int = 950) -> Iterator[Page]:
    """A page of a fresh browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        try:
            page = browser.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(_MILLISECONDS)
            expect.set_options(timeout=_MILLISECONDS)
            yield page
        finally:
            browser.close()
