"""The notebook's cells run on the demo, from first to last."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.api import SampleEvidence
from tests.kit.project import ROOT

NOTEBOOK = json.loads((ROOT / "examples/notebook/selection.ipynb").read_text(encoding="utf-8"))


def shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last expression, which a notebook shows."""
    *before, last = ast.parse(source).body
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return exec(compile(ast.Module([last], []), "cell", "exec"), names)


@pytest.mark.long
def test_every_cell_runs(whole_demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole_demo.parent)
    names: dict[str, Any] = {}
    cells = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    values = [shown(cell.replace('open("demo")', f"open({str(whole_demo)!r})"), names) for cell in cells]
    assert values[1].is_empty() and values[2].height == 5 and values[3].height == 2 and values[5].height == 20
    assert isinstance(values[4], SampleEvidence) and "iframe" in values[4]._repr_html_()


def test_no_output_is_committed() -> None:
    assert all(not cell.get("outputs") for cell in NOTEBOOK["cells"])
