"""The table of architectures: a few rows every day, all of them against the page when tests are long."""

import re
from pathlib import Path

import architectures
import pytest

from tests.kit.project import ROOT

_PAGE = ROOT / "docs" / "architectures.md"


@pytest.mark.parametrize(
    ("kind", "scores", "attention", "trains"),
    [
        ("llama", "packed", "2 of 2 layers", "yes"),
        ("gemma4_text", "packed", "2 of 2 layers", "yes"),
        ("qwen3_next", "one at a time", "no", "no"),
        ("bamba", "one at a time", "no", "no"),
        ("opt", "packed", "2 of 2 layers", "yes"),
    ],
)
def test_rows(kind: str, scores: str, attention: str, trains: str) -> None:
    row = architectures.check(kind)
    assert (row["built"], row["scores"], row["attention"]) == ("yes", scores, attention), row
    assert (row["packed"], row["skips"]) == (trains, trains), row
    assert bool(row["why"]) == (trains == "no")
    line = next(line for line in _PAGE.read_text().splitlines() if line.startswith(f"| `{kind}` "))
    assert line == f"| {' | '.join(architectures._cells(row))} |"


def test_a_row_that_hangs_or_dies_ends_no_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        architectures,
        "check",
        lambda kind: __import__("os")._exit(9) if kind == "dies" else __import__("time").sleep(60),
    )
    assert architectures.asked("hangs", seconds=0.2)["why"] == ["no answer within 0.2 seconds"]
    assert architectures.asked("dies")["why"] == ["its process ended with 9"]
    found = architectures.rows(tmp_path / "out.json", ["dies"], again=False)
    monkeypatch.setattr(architectures, "asked", lambda kind: pytest.fail(f"{kind} was asked again"))
    assert architectures.rows(tmp_path / "out.json", ["dies"], again=False) == found


def test_reasons_that_checks_share_are_said_once() -> None:
    said = architectures._text(["packed: a | b", "skips: a | b", "attention: c", "Other: d"])
    assert said == "packed, skips: a \\| b; attention: c; Other: d"


@pytest.mark.long
def test_the_page_is_what_the_installed_transformers_gives(tmp_path: Path) -> None:
    found = architectures.rows(tmp_path / "out.json", architectures.all_kinds(), again=True)
    assert not [row for row in found if "bare" in row.values()], "a bare exception"
    # What transformers says of what it cannot build may name objects; figures of differences are rounding.
    scrubbed = [
        re.sub(r"0x[0-9a-f]+|\d\.\de-\d\d", "*", text) for text in (architectures.page(found), _PAGE.read_text())
    ]
    assert scrubbed[0] == scrubbed[1]
