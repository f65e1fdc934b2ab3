"""`kill -9` at random moments while models answer: the answers of an undisturbed run, and none asked for twice."""

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.storage import Store
from tests.kit.fake_server import answering, completion
from tests.kit.project import begun, change_config

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

KILLS, QUESTIONS = 10, 200
TURNS = QUESTIONS * 3 // 2  # of one variant: every other question has two
VARIANTS = ("base", "checkpoint")


@pytest.fixture
def asked(whole_run: Path, tmp_path: Path) -> Path:
    """A project that was run, and has a quiz to answer."""
    shutil.copytree(whole_run.parent, tmp_path / "project")
    file = tmp_path / "project" / "gateau.yaml"
    quiz = {"questions": QUESTIONS, "words": 30}
    change_config(
        file, evaluation={"benchmarks": ["heldout", "needle", "quiz"], "quiz": quiz}, scoring={"batch_tokens": 120}
    )
    return file


def start(file: Path) -> subprocess.Popen[str]:
    command, program = ("run", "--config", str(file), "--until", "scores/quiz"), ("tests.runs.quiz_run",)
    return begun(*command, folder=file.parent, program=program, out=subprocess.DEVNULL)


def saved(file: Path) -> int:
    """Groups of answers that unfinished tables have in the store."""
    return len([*(file.parent / "store" / "_partial" / "answers").rglob("*.parquet")])


def kill_at_random(file: Path, rng: random.Random, done: Any) -> bool:
    """Ends a run some time after it has got on; whether that was while models answered."""
    run, before = start(file), done()
    while done() <= before and run.poll() is None:
        time.sleep(0.005)
    time.sleep(rng.uniform(0, 0.5))
    if run.poll() is not None:
        return False
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(30)
    return len(answered_tables(file)) < len(VARIANTS)


def finish(file: Path) -> dict[str, pl.DataFrame]:
    assert start(file).wait(300) == 0
    store = Store(str(file.parent / "store"))
    assert not saved(file)
    found = {name: store.read(name.split("[")[0], name.split("[")[1]) for name in tables()}
    return {name: table.drop("seconds", strict=False) for name, table in found.items()}


def tables() -> Iterator[str]:
    return (f"{kind}/quiz[{name}" for kind in ("answers", "scores") for name in VARIANTS)


def test_answers_of_this_process(asked: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(asked.parent, whole)
    wanted = finish(whole / asked.name)
    rng, kills = random.Random(1), 0
    for _ in range(KILLS):
        kills += kill_at_random(asked, rng, lambda: saved(asked) + 1000 * len(answered_tables(asked)))
    assert kills == KILLS, "each of them fell into the work"
    found = finish(asked)
    assert all(found[name].equals(wanted[name]) for name in wanted)


def answered_tables(file: Path) -> list[str]:
    return [name for name in VARIANTS if (file.parent / "store" / "answers" / "quiz" / f"{name}.parquet").exists()]


def test_a_server_is_paid_once(asked: Path) -> None:
    """One question at a time: a kill may cost the one that is on its way, and no other."""
    asked_for: Counter[tuple[str, ...]] = Counter()
    lock = threading.Lock()

    def reply(number: int, path: str, body: dict[str, Any]) -> Any:
        time.sleep(0.01)
        with lock:
            asked_for[body["model"], body["prompt"]] += 1
        return completion(f"about {len(body['prompt'])}", chat=False)

    rng, kills = random.Random(2), 0
    with answering(reply) as running:
        change_config(asked, evaluation={"engine": {"base_url": running.address, "concurrency": 1}})
        for _ in range(KILLS):
            kills += kill_at_random(asked, rng, lambda: len(running.requests))
        assert kills == KILLS, "each of them fell into the work"
        found = finish(asked)
    turns = sum(found[f"answers/quiz[{name}"].height for name in VARIANTS)
    assert turns == len(VARIANTS) * TURNS == len(asked_for)
    # Several kills may hit the same question; each costs the one that is on its way.
    assert len(running.requests) - turns <= kills
