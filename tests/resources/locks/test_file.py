"""The lock is held once, names who has it, and is free again however its process ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.project import load_project
from resources.locks.file import file_lock
from tests.project import command_environment, make_project

HOLDS = """
import sys, time
from pathlib import Path
from gateau_dagster.pipeline.project import load_project
from resources.locks.file import file_lock
with file_lock(load_project(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_lock_of_this_process(tmp_path: Path) -> None:
    config = load_project(make_project(tmp_path, samples=1, shards=1))
    for _ in range(2):
        with (
            file_lock(config),
            pytest.raises(GateauError, match=rf"\(process {os.getpid()}\)"),
            file_lock(config),
        ):
            pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    file = make_project(tmp_path, samples=1, shards=1)
    config = load_project(file)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(file)], env=command_environment(), stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(GateauError, match=rf"\(process {other.pid}\)"), file_lock(config):
            pass
        other.kill()
    with file_lock(config):
        pass
