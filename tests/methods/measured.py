"""Rows of the tables that a method declares, from a tiny model on real prose."""

from pathlib import Path
from typing import Any

from gateau_dagster.data.sample import Sample
from gateau_dagster.models.loaded import ForwardWork
from gateau_dagster.scoring.sample_table import Running
from tests.kit.tiny_models import loaded_model
from tests.methods.configured import method_of
from tests.scoring.builders import scoring

LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text()


def prose() -> list[Sample]:
    """Two passages that are scored, one without a response, one too short."""
    pieces = [("a", 3000, 3600, "ok"), ("b", 5000, 5500, LICENCE[100:160]), ("c", 0, 90, ""), ("d", 0, 20, "no")]
    return [
        Sample(sample_id=name, source="l", context=LICENCE[first:last], instruction="Why?", response=response)
        for name, first, last, response in pieces
    ]


def outcomes(name: str, options: dict[str, Any], work: ForwardWork | None = None) -> list[Any]:
    """Rows and rejects of `prose`, from the one table that the method of this name declares."""
    (table,) = method_of(name, options=options).tables()
    running = Running(max_length=2000, scoring=scoring(), work=work or ForwardWork())
    return list(table.score(loaded_model("llama"), prose(), running))
