"""`gateau ...` in this process, and a small project."""

import os
import sys
from pathlib import Path

import pytest

from gateau_dagster.cli import main as entry
from tests.assets.harness import forget_definitions
from tests.cli.command import Command, Outcome
from tests.kit.project import make_project


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs `gateau ...` in tmp_path: status, what stands on the terminal, what on the error stream."""
    monkeypatch.delenv("GATEAU_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["gateau", *arguments])
        status = 0
        before = dict(os.environ)
        forget_definitions()  # a run's are loaded once a process
        capfd.readouterr()  # what libraries said while other fixtures were made
        try:
            entry()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:  # what a command names for the processes that it starts
            for name in os.environ.keys() - before.keys():
                del os.environ[name]
            os.environ.update(before)
        out, err = capfd.readouterr()
        return status, out, err

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project's configuration file; nothing has run."""
    return make_project(tmp_path, samples=8, shards=2)
