"""Globs: as the standard library's, except where links lead round."""

import glob
from pathlib import Path

import pytest

from gateau_dagster.data.sources import matching_files, resolve_files
from tests.error_codes import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("d/x.jsonl", "d/a/y.jsonl", "d/a/b/z.jsonl", "d/.hidden/h.jsonl", "d/a/.q.jsonl", "e/w.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    return tmp_path


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "d/**/*.jsonl",
            "d/**",
            "**/*.jsonl",
            "**/**/y.jsonl",
            "**/a/**/*.jsonl",
            "d/*/**/*.jsonl",
            "[de]/**/?.jsonl",
        ),
        *("d/**/b/*.jsonl", "{folder}/**/z.jsonl", "{folder}/d/*", "d/[ax]*", "e/../d/**/x.jsonl", "f/**/*", "d/**/"),
    ],
)
def test_a_glob_means_what_it_means_elsewhere(folder: Path, pattern: str) -> None:
    pattern = pattern.format(folder=folder)
    known = {folder / name for name in glob.glob(pattern, root_dir=folder, recursive=True)}  # noqa: PTH207
    found = matching_files(pattern, folder)
    assert len(found) == len(set(found))
    assert set(found) == {path for path in known if path.is_file()}


def test_links_that_lead_round_end(folder: Path) -> None:
    """Two links back in each folder: of those ways that the system follows there are 2^40."""
    for name in ("d/self", "d/again", "d/a/up", "d/a/b/up"):
        (folder / name).symlink_to(folder / "d")
    (folder / "d/loop").symlink_to("loop")
    (folder / "d/up.jsonl").symlink_to("a")
    assert {path.name for path in matching_files("d/**/*.jsonl", folder)} == {"x.jsonl", "y.jsonl", "z.jsonl"}
    assert len(matching_files("d/**/*.jsonl", folder)) == 3
    assert len(resolve_files("d", folder)) == 3


def test_a_folder_that_a_link_leads_to_counts(folder: Path) -> None:
    (folder / "d/other").symlink_to(folder / "e")
    assert folder / "d/other/w.jsonl" in matching_files("d/**/*.jsonl", folder)
    assert str(folder / "d/other/w.jsonl") in [file.address for file in resolve_files("d", folder)]


@pytest.mark.parametrize("pattern", ["d", "d/**/*.jsonl"])
@pytest.mark.parametrize("name", ["a/lost.jsonl", "a/part2"])
def test_a_link_that_leads_nowhere_is_said(folder: Path, pattern: str, name: str) -> None:
    """A file of git-annex or DVC that was not fetched, a disk that is not mounted."""
    (folder / "d" / name).symlink_to("/elsewhere/there")
    with refused("data.broken_link", f"d/{name}: .* /elsewhere/there,"):
        resolve_files(pattern, folder)
    (folder / "d" / name).rename(folder / "d/a/README.md")
    assert len(resolve_files(pattern, folder)) == 3, "what is no data is not asked for"


@pytest.mark.parametrize("pattern", ["d", "d/**/*.jsonl"])
def test_a_closed_folder_is_said(folder: Path, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "d/lost+found").mkdir()
    closed = {folder / "d/lost+found"}
    monkeypatch.setattr("os.access", lambda path, mode: path not in closed)
    assert len(resolve_files(pattern, folder)) == 3
    closed.add(folder / "d/a/b")
    with refused("storage.permission", "d/a/b"):
        resolve_files(pattern, folder)


@pytest.mark.parametrize("path", ["", " ", "a\0b", "x" * 10_000, "s3://", ["d", ""]])
def test_what_is_no_path_means_no_file(folder: Path, path: str | list[str]) -> None:
    with refused("config.path"):
        resolve_files(path, folder)
