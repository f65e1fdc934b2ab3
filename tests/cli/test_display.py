"""The bars of a run, on a board that nobody runs."""

import io
import os
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from gateau_dagster.cli import display
from gateau_dagster.cli.display import RunDisplay, WholeTable, console, left_table, show_losses
from gateau_dagster.pipeline.losses import DataLoss
from gateau_dagster.progress import ProgressBoard


def terminal(width: int, is_terminal: bool) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, force_terminal=is_terminal, highlight=False, soft_wrap=True), text


@pytest.mark.parametrize("columns", ["0", "1"])
def test_nothing_is_lost_where_the_environment_leaves_no_width(
    columns: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = console()
    table = left_table("asset", "shards", "why")
    table.add_row("perplexity/long", "all 4", "changed: scoring.max_length")
    out.print("a line")
    out.print(table)
    assert [line.rstrip() for line in capfd.readouterr().out.splitlines()] == [
        "a line",
        "asset            shards  why",
        "perplexity/long  all 4   changed: scoring.max_length",
    ]


def test_reasons_can_be_read_in_80_columns() -> None:
    out, text = terminal(80, is_terminal=True)
    table = left_table("asset", "shards, variants", "why")
    names = "4 of 10: a-rather-long-name-s0, a-rather-long-name-s1, random-s0, random-s1"
    table.add_row("variant/selected_subset", names, "changed: selection.fraction 0.1 → 0.2")
    out.print(table, soft_wrap=False)
    assert "changed: selection.fraction" in text.getvalue() and "0.1 → 0.2" in text.getvalue()


def test_what_the_output_has_no_letters_for_is_shown_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    console().print("a path of other bytes: \udce9", markup=False)
    assert capfd.readouterr().out == "a path of other bytes: \\udce9\n"


def test_tables_that_lost_the_same_have_one_line() -> None:
    out, text = terminal(200, False)
    one, two = "1 of 9 samples rejected", "5 of 9 samples rejected"
    given = [("a", one, False), ("b", two, True), ("c", one, False)]
    show_losses(out, [DataLoss(asset=asset, sentence=said, notable=much) for asset, said, much in given])
    assert text.getvalue().splitlines() == [f"a, c: {one}", f"! b: {two}"]


def test_a_whole_table_is_not_cut_by_a_narrow_terminal() -> None:
    out, text = terminal(20, True)
    table = WholeTable(box=None)
    for name in ("rows", "size", "made"):
        table.add_column(name, no_wrap=True)
    table.add_row("1,234,567", "22.9 kB", "3 minutes ago")
    out.print(table)
    assert "1,234,567  22.9 kB  3 minutes ago" in text.getvalue()


def test_elsewhere_each_finished_step_is_one_line(tmp_path: Path) -> None:
    out, text = terminal(80, False)
    board = ProgressBoard(tmp_path / "run1")
    shown = RunDisplay(out, tmp_path)
    with shown.shown():
        with board.step("perplexity/long") as report:
            report(1, 2, "samples")
            time.sleep(0.4)
        with board.step("cam"):
            pass
    lines = [line.split() for line in text.getvalue().splitlines()]
    assert [line[:2] for line in lines] == [["✓", "perplexity/long"], ["✓", "cam"]]
    assert float(lines[0][2]) >= 0.4


def test_elsewhere_long_steps_speak_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "_SECONDS_BETWEEN_LINES", 0.0)
    out, text = terminal(80, False)
    shown = RunDisplay(out, tmp_path)
    with ProgressBoard(tmp_path / "run1").step("cam") as report:
        shown.look()
        report(3, 1200, "samples", "shard [7]")
        time.sleep(0.25)
        report(1200, 1200, "samples", "shard [7]")
        shown.look()
        report(1200, 1200, "samples", "3 samples/s", left=75.2)
        shown.look()
    lines = text.getvalue().splitlines()
    assert lines[0] == "  cam: 0 s"
    assert lines[1:] == [
        "  cam: 1,200/1,200 samples, 0 s, shard [7]",
        "  cam: 1,200/1,200 samples, 0 s, 75 s left, 3 samples/s",
    ]


def test_a_step_is_said_once_and_again_when_it_ran_again(tmp_path: Path) -> None:
    out, text = terminal(80, False)
    board, shown = ProgressBoard(tmp_path / "run1"), RunDisplay(out, tmp_path)
    for _ in range(2):
        with board.step("cam"):
            pass
        shown.look()
        shown.look()
    assert text.getvalue().count("✓ cam") == 2


@pytest.mark.parametrize("width", [80, 120])
def test_in_a_terminal_a_bar_shows_the_work(tmp_path: Path, width: int) -> None:
    out, text = terminal(width, True)
    with RunDisplay(out, tmp_path).shown(), ProgressBoard(tmp_path / "run1").step("perplexity/long") as report:
        report(5, 5, "samples", "shard [7]", left=3675.0)
        time.sleep(0.7)
    shown = text.getvalue()
    assert "perplexity/long" in shown and "5/5" in shown and "✓" in shown
    plain = re.sub(r"\x1b\[[\d;?]*\w", "", shown)
    assert re.search("1:01:1[2-5] left", plain), "the time left that the step reports, counted down"


def test_the_console_survives_a_captured_output() -> None:
    """Dagster replaces descriptor 1 while a step runs; the console keeps its own."""
    out = console()
    assert out.file.fileno() not in {1, 2}
    os.fstat(out.file.fileno())
