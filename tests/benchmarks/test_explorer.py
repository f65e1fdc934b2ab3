"""The benchmark of the viewer: the page that it measures holds every sample, on pages that are there."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.explore.builders import index_of
from tests.ui.browser import required_chromium

Script = Callable[[str], ModuleType]


def test_the_page_is_as_large_as_it_says(script: Script, tmp_path: Path) -> None:
    explorer = script("explorer")
    index = index_of(explorer.make_viewer(tmp_path, 90))
    assert len(index["ids"]) == 90 and len(index["rankings"]) == 3 + len(explorer.METHODS)
    assert sum(shard["rows"] for shard in index["shards"]) == 90
    assert all((tmp_path / "explore" / page).is_file() for shard in index["shards"] for page in shard["pages"])


@pytest.mark.long
@pytest.mark.browser
def test_a_round_in_a_browser(script: Script, tmp_path: Path) -> None:
    required_chromium()
    out = tmp_path / "found.json"
    script("explorer").main(["--samples", "200", "--rounds", "1", "--out", str(out)])
    [found] = json.loads(out.read_text())["rounds"]
    assert {*found} == {"open", "a sample", "another ranking", "most disputed", "search by id"}
    assert all(0 < seconds < 60 for seconds in found.values())
