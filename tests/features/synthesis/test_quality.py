"""A generator that cheats in six ways on documents of the demo's language, and one that is killed again and again."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.synthesis import CHECKS_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.config import SYNTHETIC_SAMPLES
from gateau_dagster.features.synthesis.questions import DUPLICATE, question_prompt
from gateau_dagster.features.synthesis.scripted_generator import (
    CHEATS,
    HONEST,
    ScriptedGenerator,
    demo_document,
    manner_of,
    serving,
)
from tests.assets.harness import pipeline_on
from tests.features.synthesis import generating_process
from tests.features.synthesis.generating_process import COUNT
from tests.features.synthesis.test_pipeline import project, table
from tests.kit.project import change_config

SHARE = 0.5


def manners(folder: Path, pair: Path, documents: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield what the generator did with each candidate, and the reason that refuses it."""
    texts = [demo_document(number) for number in range(documents)]
    with serving(ScriptedGenerator(cheats=SHARE, documents=texts)) as server:
        generator = {"concurrency": 1, "window": 1280, "max_tokens": 256}
        file = project(folder, server.base_url, documents=documents, count=count, generator=generator, checks={})
        models = {name: {"path": str(pair / name)} for name in ("short", "long")}
        models["short"]["context"] = "window"
        change_config(file, models=models, scoring={"max_length": 2048}, synthesis={"lengths": {1024: 1.0}})
        with pipeline_on(file) as pipeline:
            pipeline.refresh(SYNTHETIC_SAMPLES)
            asked, checked = (table(pipeline.state(), each) for each in (QUESTIONS_TABLE, CHECKS_TABLE))
    both = asked.join(checked.select("sample_id", "reason"), on="sample_id")
    for row in both.filter(pl.col("kind") != "self", pl.col("fault") != "declined").iter_rows(named=True):
        prompt = question_prompt(row["kind"], [each["text"] for each in row["passages"]])
        yield manner_of(prompt, SHARE), row["reason"]


@pytest.mark.long
def test_cheats_are_refused_and_honest_samples_kept_on_200_documents(trained_pair: Path, tmp_path: Path) -> None:
    found = [*manners(tmp_path, trained_pair, 200, 600)]
    counts = Counter(found)
    print(counts)  # noqa: T201 - the figures of the page on synthetic samples
    kept = [not reason for manner, reason in found if manner == HONEST]
    refused = [bool(reason) for manner, reason in found if manner != HONEST]
    assert {manner for manner, _ in found} == {*CHEATS, HONEST}
    assert {reason for manner, reason in found if manner == "duplicate"} == {DUPLICATE}, counts
    assert sum(refused) >= 0.98 * len(refused), counts
    assert sum(kept) >= 0.95 * len(kept), counts


@pytest.mark.long
def test_nothing_is_paid_twice_across_ten_kills(tmp_path: Path) -> None:
    """A request on its way at a kill is lost, so it is sent again; no reply that arrived is asked for again."""
    slow, killed = SlowGenerator(), Counter[str]()
    with serving(slow):
        for point in sorted(random.Random(5).sample(range(5, 225), 10)):
            process = started(slow, tmp_path)
            while process.is_alive() and len(slow.requests) < point:
                time.sleep(0.005)
            assert process.is_alive(), "the work is long enough for ten kills"
            process.kill()
            process.join()
            killed[slow.requests[-1]] += 1
        assert {*killed} == {"question", "closed book", "second answer"}, killed
        height, accepted, _ = finished(slow, tmp_path)
        assert height == COUNT and 0 < accepted <= COUNT
        files = list((tmp_path / "_generator_replies").rglob("*.json"))
        assert len(slow.requests) - len(files) <= killed.total(), "a file is a reply that was paid for"
        asked = len(slow.requests)
        assert finished(slow, tmp_path) == [COUNT, accepted, 0]
        assert len(slow.requests) == asked, "a whole store asks nothing"


class SlowGenerator(ScriptedGenerator):
    """It takes its time, so that kills meet it at work.

    requests: what each was about. held: the kind of which it answers ten alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []
        self.held = ""

    def reply(self, body: dict[str, Any]) -> str:
        text = body.get("prompt") or body["messages"][-1]["content"]
        kinds = {"Answer the question.": "closed book", "Answer the question from the text": "second answer"}
        kind = next((kind for start, kind in kinds.items() if text.startswith(start)), "question")
        with self.lock:
            self.requests.append(kind)
            number = self.requests.count(kind)
        time.sleep(0.02)
        while kind == self.held and number > 10:
            time.sleep(0.05)
        return super().reply(body)


def started(server: SlowGenerator, folder: Path) -> BaseProcess:
    """Begin the work in a process that has its imports already."""
    context = get_context("forkserver")
    context.set_forkserver_preload([generating_process.__name__])
    process = context.Process(target=generating_process.main, args=(server.base_url, str(folder)))
    process.start()
    return process


def finished(server: SlowGenerator, folder: Path) -> list[int]:
    process = started(server, folder)
    process.join()
    assert process.exitcode == 0
    return [*map(int, (folder / "said").read_text().split())]
