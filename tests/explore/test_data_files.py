"""The data files of a store: written once, kept while they are the same, removed when no page has them."""

from pathlib import Path

import pytest

from gateau_dagster.explore.data_files import DataFiles
from gateau_dagster.storage.files import Files


@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_only_what_is_new_is_written_and_only_what_is_old_is_removed(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path) if place == "disk" else f"s3://{request.getfixturevalue('bucket')}/store"
    files = Files(root)
    first = DataFiles(files)
    kept, old = first.put("index", [1]), first.put("index", [2])
    first.write("samples-0.js", ["text"])
    first.remove_others()
    assert files.names("explore") == sorted([kept, old, "samples-0.js"])

    files.write(f"explore/{kept}", b"as it was")
    second = DataFiles(files)
    assert not second.keep("samples-0.js", "samples-1.js"), "one of them is missing"
    assert second.put("index", [1]) == kept
    new = second.put("index", [3])
    assert {kept, old, new} <= {*files.names("explore")}, "the page of before still has its files"
    second.remove_others()
    assert files.names("explore") == sorted([kept, new, "samples-0.js"])
    assert files.read(f"explore/{kept}") == b"as it was"
