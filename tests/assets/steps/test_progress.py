"""Test the progress of a step: boards, lines in the log, rates and the time left."""

import time
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from gateau_dagster.assets.steps.progress import ScoringProgress, Voice, board_of, progress_line, remove_old_boards
from gateau_dagster.config import Config
from gateau_dagster.execution.shard_scorer import ShardReport
from gateau_dagster.progress import UNKNOWN
from tests.assets.harness import empty_job


def test_only_boards_of_runs_that_ended_are_removed(config: Config, tmp_path: Path) -> None:
    """A run started in the UI may be at work while `gateau run` starts; its step must not lose its board."""
    with DagsterInstance.ephemeral() as instance:
        alive, ended = (
            instance.create_run_for_job(empty_job, status=status).run_id
            for status in (DagsterRunStatus.STARTED, DagsterRunStatus.FAILURE)
        )
        for run_id in (alive, ended, "unknown"):
            with board_of(config, run_id).step("cam") as progress:
                progress(1, 2, "samples")
        remove_old_boards(config, instance)
    assert [folder.name for folder in (tmp_path / ".gateau" / "progress").iterdir()] == [alive]
    assert [entry.step for entry in board_of(config, alive).entries()] == ["cam"]


Seen = list[tuple[float, float | None, str, float | None]]


def report(shard: str, scored: int, share: float, *, tokens: int, seconds: float) -> ShardReport:
    return ShardReport(shard=shard, scored=scored, share=share, tokens=tokens, seconds=seconds)


def followed(text: dict[str, float], workers: int = 1, *, kept: int = 0) -> tuple[ScoringProgress, Seen]:
    """Three shards of 10, 10 and 20 samples; the first one keeps all its rows, the second one some."""
    seen: Seen = []

    def progress(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        seen.append((done, total, note, left))

    missing = sum({"1": 10 - kept, "2": 20}[shard] for shard in text)
    return ScoringProgress(progress, kept=40 - missing, missing=missing, work=text, workers=workers), seen


def test_the_time_left_follows_the_text_not_the_count() -> None:
    shown, seen = followed({"1": 300, "2": 900}, kept=4)
    shown.finish("0")
    assert seen[-1] == (0, 26, "14 kept, shard 0", UNKNOWN)
    # Half of the text of shard 1, which is a quarter of the work; four of its samples were kept.
    shown.report(report("1", 3, 0.5, tokens=600, seconds=2.0))
    done, _, note, left = seen[-1]
    assert (done, note) == (3, "14 kept, 600 tokens, 1.5 samples/s, 300 tokens/s, shard 1")
    assert left == pytest.approx(2.0 * (1 - 0.125) / 0.125)
    shown.report(report("1", 6, 1.0, tokens=1200, seconds=4.0))
    shown.finish("1")
    assert seen[-1][0] == 6 and seen[-1][3] == pytest.approx(12.0)
    shown.report(report("2", 20, 1.0, tokens=3600, seconds=12.0))
    shown.finish("2")
    assert seen[-1][0] == 26 and seen[-1][3] == 0.0


def test_of_an_edited_sample_the_line_counts_new_and_kept_rows() -> None:
    said: list[str] = []

    def progress(done: float, total: float | None, unit: str, note: str = "", *, left: float | None = None) -> None:
        said.append(progress_line(done, total, unit, note, 2.0, left))

    shown = ScoringProgress(progress, kept=14, missing=1, work={"1": 700}, workers=1)
    shown.report(report("1", 1, 1.0, tokens=600, seconds=2.0))
    assert said == [
        "1/1 new samples (100%), 0 s left, 14 kept, 600 tokens, 0.5 samples/s, 300 tokens/s, shard 1",
    ]
    ScoringProgress(progress, kept=8, missing=0, work={}, workers=1).start()
    assert said[1:] == ["0 new samples, 8 kept"], "only its stamps are new"
    early = ScoringProgress(progress, kept=0, missing=1000, work={"1": 100_000}, workers=1)
    early.report(report("1", 5, 0.01, tokens=6000, seconds=20.0))
    assert said[2:] == ["5/1,000 samples (0%), 6,000 tokens, 0.2 samples/s, 300 tokens/s, shard 1"], (
        "no guess from the count"
    )


def test_until_the_first_sample_is_done_it_may_be_loading_or_scoring() -> None:
    shown, seen = followed({"1": 300})
    shown.start()
    assert seen == [(0, 10, "30 kept, loading the model, then the first samples", UNKNOWN)]
    shown.loaded()
    assert seen[1:] == [(0, 10, "30 kept, scoring the first samples", UNKNOWN)]
    shown.report(report("1", 1, 0.1, tokens=10, seconds=1.0))
    assert "loading" not in seen[-1][2] and "first" not in seen[-1][2]
    shown.loaded()
    assert len(seen) == 3, "the next shard asks for it again"


def test_a_long_sample_moves_its_tokens_and_the_time_left() -> None:
    shown, seen = followed({"1": 300})
    shown.report(report("1", 0, 0.0, tokens=4096, seconds=8.0))
    assert seen[-1] == (0, 10, "30 kept, 4,096 tokens, 512 tokens/s, shard 1", UNKNOWN)
    shown.report(report("1", 1, 0.5, tokens=8192, seconds=16.0))
    assert seen[-1][2:] == ("30 kept, 8,192 tokens, 16 s per sample, 512 tokens/s, shard 1", 16.0)
    for seconds, left in ((26.0, 6.0), (40.0, 0.0)):
        shown.report(report("1", 1, 0.5, tokens=9000, seconds=seconds))
        assert seen[-1][0] == 1 and seen[-1][3] == left


def test_the_first_sample_of_a_long_pass_gives_no_exaggerated_time() -> None:
    """A pass holds parts of many samples: when the first of them is complete, most of the others nearly are."""
    shown, seen = followed({"1": 100, "2": 100})
    shown.report(report("1", 1, 0.03, tokens=2000, seconds=8.0))
    assert seen[-1][3] == UNKNOWN, "1.5 % of the text"
    shown.report(report("1", 2, 0.04, tokens=2000, seconds=8.0))
    assert seen[-1][3] == pytest.approx(8.0 * 0.98 / 0.02)


def test_workers_add_up() -> None:
    shown, seen = followed({"1": 100, "2": 100}, workers=2)
    shown.report(report("1", 5, 0.5, tokens=100, seconds=4.0))
    shown.report(report("2", 10, 0.5, tokens=100, seconds=4.0))
    assert seen[-1] == (15, 30, "10 kept, 200 tokens, 3.8 samples/s, 50 tokens/s, shard 2", 4.0)


def test_the_line() -> None:
    assert progress_line(12, 63, "samples", "", 4.0) == "12/63 samples (19%), 3.0 samples/s, 17 s left"
    assert progress_line(5, None, "files", "a.jsonl", 2.0) == "5 files, 2.5 files/s, a.jsonl"
    known = progress_line(12, 63, "samples", "1.5 samples/s, shard 1", 4.0, left=30.0)
    assert known == "12/63 samples (19%), 30 s left, 1.5 samples/s, shard 1"
    assert progress_line(0, 10, "samples", "", 5.0) == "0/10 samples (0%)"
    assert progress_line(2, 10, "shards", "", 24.0) == "2/10 shards (20%), 12 s per shard, 96 s left"


def test_a_silent_step_is_still_heard_of() -> None:
    said: list[str] = []
    with Voice(said.append, every=0.02, silence=0.05).speaking():
        time.sleep(0.3)
    assert 2 <= len(said) <= 6
    assert all(line.startswith("at work for") for line in said)
    count = len(said)
    time.sleep(0.12)
    assert len(said) == count, "it has ended"


def test_old_news_are_said_again_as_such() -> None:
    said: list[str] = []
    voice = Voice(said.append, every=0.1, silence=0.2)
    voice.hear(3, 12, "samples", "shard 1", 9.0)
    with voice.speaking():
        time.sleep(0.5)
    assert said and all(line.startswith("3/12 samples (25%), 9 s left, shard 1; the last") for line in said)


def test_reports_are_said_now_and_then() -> None:
    said: list[str] = []
    voice = Voice(said.append, every=0.1, silence=60)
    end = time.monotonic() + 0.35
    with voice.speaking():
        while time.monotonic() < end:
            voice.hear(1, 2, "steps", "", None)
            time.sleep(0.005)
    assert 1 <= len(said) <= 3
