"""kill -9 at ten random moments of judging: the same table, and no reply that was kept is paid again."""

import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.evaluation.judging.replies import Replies
from gateau_dagster.storage.files import Files
from tests.project import ROOT, command_environment

from .judge_server import Answer, JudgeServer, judge_server
from .judging_process import CONCURRENT, TABLE, wanted

KILLS = 10


def started(server: JudgeServer, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.evaluation.judging.judging_process", server.base_url, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=command_environment())


def score(message: str, before: int) -> Answer:
    """By the question; one in seven cannot be read. Each takes a while."""
    number = sum(map(ord, message))
    return Answer(text="[[none]]" if number % 7 == 0 else f"[[{1 + number % 10}]]", wait=0.05)


def counted(done: set[str], twice: list[str], message: str, before: int) -> Answer:
    """As `score`; a request whose reply was kept and can be read is noted in `twice`."""
    answer = score(message, before)
    if message in done and answer.text != "[[none]]":
        twice.append(message)
    return answer


@pytest.mark.long
def test_ten_kills_change_nothing_and_cost_what_was_under_way(tmp_path: Path) -> None:
    lot = random.Random(12)
    twice: list[str] = []
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    with judge_server(score) as server:
        assert started(server, undisturbed).wait() == 0
        once = len(server.requests)
        server.requests.clear()
        for _ in range(KILLS):
            before = len(server.requests)
            process = started(server, killed)
            while len(server.requests) == before and process.poll() is None:
                time.sleep(0.01)
            time.sleep(lot.uniform(0, 0.25))
            process.kill()
            assert process.wait() != 0, "it was killed in the middle"
            time.sleep(0.1)  # what it had sent is answered to nobody
            kept = Replies(Files(str(killed)), "judge")
            done = {each.asked.messages[-1]["content"] for each in wanted() if each.asked in kept}
            server.play = partial(counted, done, twice)
        assert started(server, killed).wait() == 0
        assert len(server.requests) <= once + KILLS * CONCURRENT
    assert not twice
    tables = [pl.read_parquet(folder / TABLE) for folder in (undisturbed, killed)]
    assert tables[0].equals(tables[1])
