import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gateau_dagster.progress import ProgressBoard


def test_a_step_is_on_the_board_while_it_runs_and_after(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path / "run")
    assert board.entries() == []
    before = time.time()
    with board.step("perplexity/long") as report:
        (entry,) = board.entries()
        assert (entry.step, entry.done, entry.total, entry.ended) == ("perplexity/long", 0, None, 0.0)
        report(3, 3, "samples", "shard 2")
        (entry,) = board.entries()
        assert (entry.done, entry.total, entry.unit, entry.note, entry.left) == (3, 3, "samples", "shard 2", None)
        report(3, 3, "samples", "shard 2", left=1.5)
        (entry,) = board.entries()
        assert entry.left == 1.5
        assert replace(entry, reported=time.time() - 1).left_now == pytest.approx(0.5, abs=0.2)
        assert replace(entry, reported=time.time() - 9).left_now == 0.0
    (entry,) = board.entries()
    assert before <= entry.started <= entry.ended <= time.time()
    assert (entry.done, entry.unit) == (3, "samples")


def test_steps_come_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path)
    with board.step("zzz"), board.step("aaa"):
        assert [entry.step for entry in board.entries()] == ["zzz", "aaa"]


def test_frequent_reports_are_written_seldom_but_the_last_one_always(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path)
    seen = set()
    with board.step("cam") as report:
        for done in range(1, 2001):
            report(done, 2000, "samples")
            if done % 100 == 0:
                seen.add(board.entries()[0].done)
        assert board.entries()[0].done == 2000
    assert len(seen) < 15


def test_a_failed_step_does_not_count_as_ended(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path)
    with pytest.raises(RuntimeError), board.step("cam") as report:
        report(1, 5, "samples")
        raise RuntimeError("boom")
    assert board.entries()[0].ended == 0.0


def test_a_step_that_is_tried_again_takes_its_place(tmp_path: Path) -> None:
    board = ProgressBoard(tmp_path)
    for _ in range(2):
        with board.step("cam"):
            pass
    assert len(board.entries()) == 1


def test_a_reader_never_meets_half_a_file(tmp_path: Path) -> None:
    board, stop = ProgressBoard(tmp_path), threading.Event()

    def write() -> None:
        while not stop.is_set():
            with board.step("x" * 50) as report:
                report(1, 1, "samples", "note " * 200)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        read = 0
        while read < 1000:  # how many reads meet a step depends on the machine
            read += len(board.entries())
    finally:
        stop.set()
        thread.join()


def test_a_board_that_is_taken_down_while_it_is_read_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = ProgressBoard(tmp_path)
    with board.step("a"), board.step("b"):
        pass
    real = Path.read_text

    def vanishing(self: Path, *arguments: object, **named: object) -> str:
        if self.name == "a.json":
            self.unlink()
        return real(self)

    monkeypatch.setattr(Path, "read_text", vanishing)
    assert [entry.step for entry in board.entries()] == ["b"]
