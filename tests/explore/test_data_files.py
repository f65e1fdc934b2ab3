"""The data files of a store: written once, kept while they are the same, removed when no page has them."""

from pathlib import Path

import pytest

from gateau_dagster.explore.publish import DataFiles
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

    times = {name: files.filesystem.modified(files.address(f"explore/{name}")) for name in (kept, "samples-0.js")}
    second = DataFiles(files, first.versions())
    assert not second.keep("samples-0.js", "samples-1.js"), "one of them is missing"
    assert second.put("index", [1]) == kept
    new = second.put("index", [3])
    assert {kept, old, new} <= {*files.names("explore")}, "the page of before still has its files"
    second.remove_others()
    assert files.names("explore") == sorted([kept, new, "samples-0.js"])
    assert times == {name: files.filesystem.modified(files.address(f"explore/{name}")) for name in times}


@pytest.mark.parametrize("place", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_a_damaged_file_is_written_again_and_one_of_unknown_content_too(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    files = Files(str(tmp_path) if place == "disk" else f"s3://{request.getfixturevalue('bucket')}/store")
    first = DataFiles(files)
    name = first.put("index", ["text"])
    first.write("samples-0.js", ["text"])
    written, whole = first.versions(), {each: files.read(f"explore/{each}") for each in (name, "samples-0.js")}
    for damage in (b"", whole[name][:-1], whole[name].replace(b"text", b"tex4")):
        files.write(f"explore/{name}", damage)
        second = DataFiles(files, written)
        assert second.keep("samples-0.js") and not second.keep(name)
        assert second.put("index", ["text"]) == name and second.versions() == written
        assert {each: files.read(f"explore/{each}") for each in whole} == whole
    assert not DataFiles(files).keep("samples-0.js"), "no stamp says what it held"
