"""What a user reads where the program is wrong, or what surrounds it: one message, and a file with the rest."""

import json
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from gateau_dagster.errors import UnforeseenError
from tests.cli.command import Command
from tests.kit.project import command_environment, sample

CHECKED = "gateau_dagster.resources.project.checked_project"


def test_a_defect_is_one_message_and_a_file(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(CHECKED, mock.Mock(side_effect=KeyError("a defect of ours")))
    status, _, err = command("plan")
    assert status == 1
    assert err.startswith("Error: unexpected KeyError: 'a defect of ours'\n") and "Traceback" not in err
    log = tmp_path / ".gateau" / "error.log"
    assert str(log) in err
    assert "Traceback" in log.read_text() and "a defect of ours" in log.read_text()


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("gateau_dagster.pipeline.project.check_dependencies", ValueError("of ours")),
        ("gateau_dagster.pipeline.checks.check_data", ValueError("of ours")),
        (
            "gateau_dagster.assets.runs.refresh.run_refresh",
            UnforeseenError("cam: of ours", kind="ValueError", trace="Traceback"),
        ),
    ],
)
def test_no_other_error_is_meant_for_users(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, error: Exception
) -> None:
    """Neither where the configuration is checked, nor where it is planned, nor in a step."""
    (tmp_path / "g.yaml").write_text("long_sft: {path: long.jsonl}\nselection: {method: length}\n")
    (tmp_path / "long.jsonl").write_text(json.dumps(sample(1)) + "\n")
    monkeypatch.setattr(place, mock.Mock(side_effect=error))
    status, _, err = command("run", "--config", "g.yaml", "--until", "report")
    assert status == 1
    assert err.startswith("Error: unexpected ValueError: ") and "of ours\nThis is a defect of GATEAU" in err
    assert "Traceback" in (tmp_path / ".gateau" / "error.log").read_text()


def test_a_defect_s_file_is_its_user_s_alone_and_holds_no_secret(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / ".gateau" / "error.log"
    log.parent.mkdir()
    log.write_text("of an earlier version")
    log.chmod(0o644)
    monkeypatch.setattr(CHECKED, mock.Mock(side_effect=KeyError("https://user:pass/word@host:9000/bucket")))
    status, _, err = command("plan", "--config", "s3://key:secret@bucket/gateau.yaml")
    assert status == 1 and "https://***@host:9000/bucket" in err
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    text = log.read_text()
    assert "Traceback" in text and "plan --config s3://***@bucket/gateau.yaml" in text
    assert not any(secret in text + err for secret in ("word", "secret", "earlier"))


def test_a_defect_where_nothing_can_be_written_shows_its_traceback(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".gateau").write_text("a file in the way")

    monkeypatch.setattr(CHECKED, mock.Mock(side_effect=RuntimeError))
    status, _, err = command("plan")
    assert status == 1 and "unexpected RuntimeError: no message" in err and "Traceback" in err


def test_a_folder_that_is_gone_is_one_line(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    status, _, err = command("plan", "--config", str(project))
    assert status == 1 and "Traceback" not in err
    assert "Error: " in err and err.endswith("[machine.folder_gone]\n")


@pytest.mark.long
def test_closed_streams_are_nothing_to_fail_over(project: Path) -> None:
    command = [sys.executable, "-m", "gateau_dagster.cli", "validate", "--config", str(project)]
    closed = subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *command], cwd=project.parent, check=False)
    assert closed.returncode == 0 and not (project.parent / ".gateau" / "error.log").exists()


WITHOUT_PROC = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
COMMANDS = (("plan",), ("run", "--until", "raw_long_sft"), ("status",), ("validate",))
LIMITS = {
    "files": (partial(resource.setrlimit, resource.RLIMIT_NOFILE, (20, 20)), "(ulimit -n 1024)"),
    "size": (partial(resource.setrlimit, resource.RLIMIT_FSIZE, (8192, 8192)), "(ulimit -f)"),
    "memory": (partial(resource.setrlimit, resource.RLIMIT_AS, (2 * 10**9, 2 * 10**9)), "(ulimit -v unlimited)"),
    "proc": (None, "/proc cannot be read"),
}


def assert_at_most_one_line(
    project: Path, arguments: tuple[str, ...], limit: Callable[[], None] | None, cure: str, before: Sequence[str] = ()
) -> None:
    done = subprocess.run(
        [*before, sys.executable, "-m", "gateau_dagster.cli", *arguments],
        cwd=project.parent,
        env=command_environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    errors = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert done.returncode == bool(errors) and "Traceback" not in done.stderr, done.stderr
    assert all(cure in line for line in errors), errors
    assert done.returncode == 1 or arguments[0] != "run", "it works within the limit: try a lower one"


def test_too_little_address_space_is_told_before_a_library_aborts(project: Path) -> None:
    assert_at_most_one_line(project, COMMANDS[1], *LIMITS["memory"])


@pytest.mark.long
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("limited", LIMITS)
def test_a_process_with_limits_names_them_or_does_without(
    project: Path, limited: str, arguments: tuple[str, ...]
) -> None:
    before = WITHOUT_PROC if limited == "proc" else []
    if before and subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to mount")
    assert_at_most_one_line(project, arguments, *LIMITS[limited], before=before)


def test_a_path_of_other_bytes_is_named(command: Command, project: Path) -> None:
    other = project.rename(project.with_name("\udce9.yaml"))
    status, _, err = command("plan", "--config", str(other))
    assert status == 1 and "\\udce9.yaml contains characters that are not UTF-8" in err and "LC_ALL=C.UTF-8" in err


def test_a_defect_s_file_takes_other_bytes_too(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECKED, mock.Mock(side_effect=RuntimeError("\udce9")))
    status, _, err = command("plan")
    assert status == 1 and "unexpected RuntimeError" in err and "Traceback" not in err


def test_an_interrupt_ends_with_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHECKED, mock.Mock(side_effect=KeyboardInterrupt))
    status, _, err = command("plan")
    assert status == 130 and "Run again to continue" in err
