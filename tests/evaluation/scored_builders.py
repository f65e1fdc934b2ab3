"""What benchmarks that are scored are given in tests: files, answers, materials."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.evaluation.benchmark import Materials, Question
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.models.loading import LoadedModel

from .builders import configured


def write_jsonl(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def project(folder: Path, name: str, **options: Any) -> Config:
    """A project in `folder` that asks for one benchmark with these options."""
    config = configured(evaluation={"benchmarks": [name], name: options})
    return config.model_copy(update={"folder": folder})


def chosen(config: Config) -> Any:
    """The benchmark that runs."""
    (found,) = scored_benchmarks(config).values()
    return found


def materials(
    config: Config,
    *,
    model: Callable[[str], LoadedModel] | None = None,
    tables_of: Mapping[str, pl.DataFrame] | None = None,
) -> Materials:
    """`tables_of`: what may be read, by asset."""
    known = tables_of or {}

    def shards(asset: str, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        yield known[asset].select(columns)

    def none(name: str) -> LoadedModel:
        raise AssertionError(f"the model {name} is not needed")

    return Materials(config=config, reads={*known}, shards=shards, samples=lambda _: (), model=model or none)


def answers(said: Mapping[str, str]) -> pl.DataFrame:
    """tables.ANSWERS: by question, what was answered to its first turn."""
    rows = [(question, 0, "", "", answer, 1, 0, 1, "stop", 0.0) for question, answer in said.items()]
    return pl.DataFrame(rows, schema=tables.schema(tables.ANSWERS), orient="row")


def values(config: Config, questions: Sequence[Question], said: Mapping[str, str]) -> dict[str, float]:
    """What the answers are worth, by question."""
    graded = chosen(config).grade(questions, answers(said), None)
    assert graded.table.schema == tables.schema(tables.SCORES)
    return dict(graded.table.select("question_id", "value").iter_rows())


def asked(config: Config, given: Materials | None = None) -> list[Question]:
    """The benchmark's questions; their ids are unique."""
    found = [*chosen(config).questions(given or materials(config))]
    assert len({each.question_id for each in found}) == len(found)
    return found


def digests(config: Config, name: str, given: Materials | None = None) -> dict[str, str]:
    """What a benchmark asks, by the questions' ids: answers to equal ones are shared."""
    benchmark: Any = scored_benchmarks(config)[name]
    return {each.question_id: each.digest for each in benchmark.questions(given or materials(config))}
