"""Which questions stand in the data, shard by shard: an edit looks through its own shard again, and no other."""

import json
from pathlib import Path

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.assets.steps import definition
from gateau_dagster.assets.steps.step import Step
from gateau_dagster.data.sample import shard_of
from gateau_dagster.features.evaluation.contamination import OVERLAPS
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, in_range, pipeline_on, value_of
from tests.features.evaluation.experiment_builders import scores
from tests.features.evaluation.quiz import quiz
from tests.features.evaluation.test_contamination import drawn_words
from tests.kit.project import change_config, make_project, sample, write_samples

__all__ = ["quiz"]
SHARDS = 3
LONG, SHORT = "contamination/quiz", "short_contamination/quiz"
ASKED = [f"{drawn_words(seed, 30)}?" for seed in range(4)]


def write_long(project: Pipeline, **planted: str) -> None:
    """The samples; `planted`: what stands in the context of some."""
    records = [sample(number) for number in range(12)]
    for record in records:
        record["context"] += " " + planted.get(record["id"], "")
    write_samples(project.file.parent / "long.jsonl", records)


def write_chats(project: Pipeline, *asked: str) -> None:
    turns = [[{"from": "human", "value": each}, {"from": "gpt", "value": "I see."}] for each in asked]
    chats = [{"id": f"c{number}", "conversations": each} for number, each in enumerate(turns)]
    (project.file.parent / "short.json").write_text(json.dumps(chats))


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what else is declared for the benchmark by functions that do nothing."""

    def nothing(step: Step) -> None:
        del step

    functions = definition.asset_functions()
    others = dict.fromkeys(("benchmark_answers", "benchmark_scores"), nothing)
    monkeypatch.setattr(definition, "asset_functions", lambda: {**others, **functions})


def stale(project: Pipeline, asset: str) -> list[str | None]:
    """Its shards that are out of date."""
    work = project.state().plan_until(asset).of(asset)
    return [] if work is None else [*work.reasons]


def found(project: Pipeline, asset: str) -> list[tuple[str, str]]:
    return sorted(project.state().read(asset, ["sample_id", "question_id"]).rows())


def test_what_is_planted_is_found_and_only_its_shard_is_looked_through_again(
    tmp_path: Path, quiz: str, makers: None
) -> None:
    sections = {"evaluation": {"benchmarks": [quiz], quiz: {"texts": ASKED}}, "short_chat": {"path": "short.json"}}
    file = make_project(tmp_path, samples=12, shards=SHARDS, training=True, **sections)
    with pipeline_on(file) as project:
        write_long(project, s00003=ASKED[0].upper())
        write_chats(project, "Hello there, how are you?", f"Please tell me, {ASKED[1]}")
        assets = ["raw_long_sft", "short_chat_mix", LONG, SHORT]
        assert project.execute(assets, tags=in_range("0", str(SHARDS - 1))).success
        assert stale(project, LONG) == stale(project, SHORT) == []
        assert "input_fields" in project.latest("short_chat_mix").metadata
        assert found(project, LONG) == [("s00003", "q0")] and found(project, SHORT) == [("c1", "q1")]

        write_long(project, s00003=ASKED[0].upper(), s00007=ASKED[2])
        shard = str(shard_of("s00007", SHARDS))
        assert stale(project, LONG) == [shard] and stale(project, SHORT) == []
        ((part, event),) = [(part, event) for (asset, part), event in project.made(LONG).items() if asset == LONG]
        figures = {"questions": 4, "questions_found": 1 + (shard == str(shard_of("s00003", SHARDS)))}
        assert part == shard and {name: value_of(event, name) for name in figures} == figures
        assert found(project, LONG) == [("s00003", "q0"), ("s00007", "q2")]

        change_config(file, evaluation={quiz: {"texts": ASKED[2:]}})
        assert len(stale(project, LONG)) == SHARDS and len(stale(project, SHORT)) == 1


def test_the_experiment_without_the_questions_that_stand_in_the_data(tmp_path: Path, quiz: str) -> None:
    """On a store whose scores and overlaps were written by hand."""
    file = make_project(tmp_path, samples=4, shards=1, training=True, evaluation={"benchmarks": [quiz]})
    with pipeline_on(file) as project:
        state, stamp = project.state(), Stamp(fingerprint="f", content="c")
        row = {"model": "m", "samples": None, "tokens": None, "seconds": None}
        models = pl.DataFrame([row], schema=tables.schema(tables.VARIANT_CHECKPOINT))
        for name, first in (("base", 0.0), ("checkpoint", 100.0)):
            state.store.write(models, "variant/checkpoint", name, stamp)
            state.store.write(scores([first, 20.0, 40.0, 30.0]), "scores/quiz", name, stamp)
        pair = [("s", "q0000", 9, 1.0, 0.5)]
        state.store.write(pl.DataFrame(pair, schema=tables.schema(OVERLAPS), orient="row"), LONG, "0", stamp)
        project.make("untouched_experiment")
        found = state.read("untouched_experiment")
        assert found.select("variant", "value", "questions", "touched").rows() == [
            ("base", 30.0, 3, 1),
            ("checkpoint", 30.0, 3, 1),
        ]
