import errno
import os
from pathlib import Path

import pytest

from gateau_dagster.storage.json_cache import keeping, recall, recall_all, remember, remember_all


def test_what_is_remembered_is_recalled_and_the_rest_kept(tmp_path: Path) -> None:
    file = tmp_path / "cache" / "values.json"
    assert recall(file, "a") is None and recall_all(file) == {}
    remember(file, "a", [1, "x"])
    remember_all(file, {"b": 2, "c": None})
    assert recall(file, "a") == [1, "x"]
    assert recall_all(file) == {"a": [1, "x"], "b": 2, "c": None}
    assert [each.name for each in file.parent.iterdir()] == ["values.json"]


def test_a_damaged_file_is_rebuilt_and_a_folder_in_the_way_costs_the_memory(tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    for damaged in ("{half", "[1]", "[" * 200_000, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")):
        file.write_text(damaged)
        assert recall(file, "a") is None
    remember(file, "a", 1)
    assert recall_all(file) == {"a": 1}
    (tmp_path / "blocked").write_text("a file")
    remember(tmp_path / "blocked" / "values.json", "a", 1)
    assert recall(tmp_path / "blocked" / "values.json", "a") is None


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    os.mkfifo(file)
    assert recall(file, "a") is None
    remember(file, "a", 1)
    assert recall_all(file) == {"a": 1}


def test_what_cannot_be_kept_is_said_once_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.json", "b.json"):
        with keeping(tmp_path / name):
            raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / name))
    (message,) = caplog.messages
    assert str(tmp_path) in message and "the disk is full" in message
    with keeping(tmp_path / "other" / "a.json"):
        raise OSError(errno.EROFS, "Read-only file system")
    assert "read-only" in caplog.messages[1]
    with pytest.raises(ZeroDivisionError), keeping(tmp_path / "a.json"):
        raise ZeroDivisionError
