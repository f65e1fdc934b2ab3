"""The figures of README and docs are those that the benchmarks wrote."""

import json
import re
from pathlib import Path
from typing import Any

import figures
import pytest

from tests.kit.project import ROOT


def test_all_tables_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--check"]) == 0, capsys.readouterr().err


def test_every_table_is_on_a_page() -> None:
    marks = [name for text in figures.pages().values() for name in re.findall(r"<!-- figures: (\w+) -->", text)]
    assert set(marks) == set(figures.TABLES)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/evidence/{name}.md" for name in ("real_text", "synthetic"))])
def test_no_auroc_is_copied_by_hand(page: str) -> None:
    by_hand = figures._MARKED.sub("", (ROOT / page).read_text())
    assert re.findall(r"\b[01]\.\d{3}\b.*", by_hand.replace("at least 0.995", "")) == []


def test_another_figure_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in figures.KEPT.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    language = json.loads((tmp_path / "synthetic.json").read_text())
    language["methods"]["gateau[robust]"]["within reach"]["auroc"][0] -= 0.25
    (tmp_path / "synthetic.json").write_text(json.dumps(language))
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    assert figures.main(["--check"]) == 1
    stale = capsys.readouterr().err.splitlines()
    assert stale == [f"not current: {page}" for page in ("README.md", *_PAGES_OF_SYNTHETIC)]


_PAGES_OF_SYNTHETIC = ["docs/evidence/synthetic.md", "docs/explanation/presets.md"]


def test_files_are_shortened_and_the_pages_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measured").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "Read.\n\n<!-- figures: real_methods -->\n\nold\n<!-- end of figures -->\nMore.\n"
    )
    (tmp_path / "measured" / "real_report.json").write_text(json.dumps(_measured()))
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "KEPT", tmp_path / "docs" / "kept")
    assert figures.main(["--measured", str(tmp_path / "measured")]) == 0
    kept = json.loads((tmp_path / "docs" / "kept" / "real_text.json").read_text())
    assert kept["results"]["tiny 100/50"]["methods"]["random"] == {
        "all kinds": {name: [0.512345, 0.25, 0.75] for name in figures.FIGURES},
        "near": {"auroc": [0.512345, 0.25, 0.75]},
    }
    assert (tmp_path / "README.md").read_text().splitlines() == [
        "Read.", "", "<!-- figures: real_methods -->", "",
        "| method | tiny 100/50 |", "| --- | --- |",
        "| `gateau`, `robust`; `far_gain` | 0.900 (0.250-0.750) |",  # the same figures
        "| `random` | 0.512 (0.250-0.750) |",
        "", "<!-- end of figures -->", "More.",
    ]  # fmt: skip
    assert figures.main(["--check"]) == 0


def _measured() -> dict[str, Any]:
    """Return a file as real_selection.py writes it, with few figures."""
    values = {"random": 0.512345, "gateau[robust]": 0.9, "far_gain": 0.9}
    methods = {
        label: {
            task: {name: {"value": value, "low": 0.25, "high": 0.75} for name in figures.FIGURES}
            for task in ("all kinds", "near")
        }
        for label, value in values.items()
    }
    result = {"samples": 9, "probability_of_response": {"near": 0.25}, "figures": methods}
    result["difference"] = {label: by_task["near"]["auroc"] for label, by_task in methods.items()}
    return {
        "settings": {},
        "machine": {},
        "results": {"tiny 100/50": result | {"answerable": {"samples": 8, "figures": methods}}},
    }


def test_a_figure_is_drawn_again_only_if_its_figures_changed(tmp_path: Path) -> None:
    assert figures.drawn(tmp_path, figures.KEPT) == ["effect.svg"]
    assert b"<svg" in (tmp_path / "effect.svg").read_bytes()
    assert figures.drawn(tmp_path, figures.KEPT) == []
