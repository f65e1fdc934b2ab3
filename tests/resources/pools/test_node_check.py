"""A machine that differs where figures come from does not score, and says in one line each how it differs."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.resources.pools import worker
from gateau_dagster.resources.pools.worker import Expected, code_digest, installed_versions, marked_store, problems


@pytest.fixture
def expected(tmp_path: Path) -> Expected:
    with marked_store(str(tmp_path), cuda=False) as found:
        assert problems(found) == []
    assert problems(found)[0].startswith("it does not see the store"), "the marker goes with the block"
    found_file = tmp_path / found.marker
    found_file.parent.mkdir(exist_ok=True)
    found_file.write_text(found.content)
    return found


def test_another_store_at_the_same_path(expected: Expected) -> None:
    Path(expected.root, expected.marker).write_text("something else")
    [line] = problems(expected)
    assert re.search(r"does not see the store .* S3 or on a disk that all machines share", line)


def test_a_store_that_cannot_be_read(expected: Expected) -> None:
    marker = Path(expected.root, expected.marker)
    marker.unlink()
    marker.mkdir()
    [line] = problems(expected)
    assert line.startswith("it cannot read the store")


def test_other_versions(expected: Expected) -> None:
    there = {**installed_versions(), "torch": "2.12.1", "Python": "3.9", "nothing": "1.0"}
    lines = problems(replace(expected, versions=there))
    here = installed_versions()
    assert [line.split(" there,")[0] for line in lines] == [
        f"Python is {here['Python']}",
        f"torch is {here['torch']}",
        "nothing is missing",
    ]
    assert "and 2.12.1 here" in lines[1]


def test_other_sources(expected: Expected, monkeypatch: pytest.MonkeyPatch) -> None:
    [line] = problems(replace(expected, code="0" * 64))
    assert "gateau-dagster differs from the one that began this run" in line
    here = code_digest()
    code_digest.cache_clear()
    monkeypatch.setattr(worker, "_SOURCES", ("gateau_dagster",))
    assert code_digest() != here
    code_digest.cache_clear()


def test_a_missing_gpu(expected: Expected) -> None:
    [line] = problems(replace(expected, cuda=True))
    assert "torch finds none" in line and "execution.ray.gpus to 0" in line
