"""Benchmarks ask what is unanswered, grade it, and measure the models."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
import yaml

from gateau_dagster import tables
from gateau_dagster.config import ModelConfig
from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation.assets.benchmarks import answer_questions, materials, measured_models
from gateau_dagster.features.evaluation.benchmark import (
    Materials,
    Measured,
    PageFigure,
    PageSection,
    Question,
    QuestionBenchmark,
)
from gateau_dagster.features.evaluation.generation.answering import (
    Answer,
    AnsweringResult,
    AskedTurn,
    partly_read_answers,
)
from gateau_dagster.features.evaluation.generation.in_process import InProcess
from gateau_dagster.features.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.features.evaluation.registry import all_benchmarks, scored_benchmarks
from gateau_dagster.models.loading import load_model
from gateau_dagster.plotting import new_figure
from gateau_dagster.progress import silent
from gateau_dagster.readable import PageAmount, PageChart
from gateau_dagster.storage import Stamp, Store
from gateau_dagster.tables import Column
from tests.assets.harness import Made, Pipeline, in_place, pipeline_on, value_of
from tests.features.evaluation.builders import answers as given
from tests.features.evaluation.builders import write_jsonl
from tests.features.evaluation.engines import Noting, question
from tests.features.evaluation.experiment_builders import Unmeasured
from tests.features.evaluation.mt_bench_files import NO_MATERIALS
from tests.features.evaluation.quiz import with_quiz
from tests.features.evaluation.suites import longbench_row as row
from tests.features.evaluation.suites import write_prompts
from tests.kit.fake_server import Reply, answering, completion, refusal
from tests.kit.project import change_config, make_project, sample
from tests.kit.ray_cluster import ray_cluster

VARIANTS = ("base", "checkpoint")
ALL = ["heldout", "needle", "quiz"]  # the held-out samples stay reserved


@pytest.fixture(scope="module")
def quizzed(whole_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """The models of a project that was run answer the quiz."""
    folder = tmp_path_factory.mktemp("quizzed") / "project"
    shutil.copytree(whole_run.parent, folder)
    file = folder / "gateau.yaml"
    change_config(file, evaluation={"benchmarks": ALL, "quiz": {"questions": 5}}, scoring={"batch_tokens": 100})
    with with_quiz(), pipeline_on(file) as pipeline:
        pipeline.refresh("scores/quiz")
        yield pipeline


def scored(pipeline: Pipeline, **evaluation: Any) -> Made:
    """Return the assets that a run makes after these changes, but the checkpoint."""
    made = pipeline.made("scores/quiz", evaluation=evaluation)
    return {key: event for key, event in made.items() if "quiz" in key[0]}


def answers(pipeline: Pipeline, variant: str) -> pl.DataFrame:
    return pipeline.state().store.read("answers/quiz", variant)


def test_every_model_answers_every_turn_as_it_does_alone(quizzed: Pipeline) -> None:
    config = quizzed.config
    quiz = scored_benchmarks(config)["quiz"]
    assert isinstance(quiz, QuestionBenchmark)
    model = ModelConfig(path=str(config.folder / "long"))
    loaded = load_model(model, dtype="float32", device="cpu", folder=Path())
    alone = InProcess(
        loaded, PromptBuilder(tokenizer=loaded.tokenizer, template="gateau", max_length=512), batch_tokens=1
    )
    for asked in quiz.questions(NO_MATERIALS):
        said: list[str] = []
        for turn in range(len(asked.turns)):
            ((one,),) = alone.answers([AskedTurn(question=asked, answers=tuple(said))], {asked.question_id})
            row = answers(quizzed, "base").row(by_predicate=_at(asked.question_id, turn), named=True)
            assert isinstance(one, Answer)
            assert {**row, "seconds": 0.0, "unread_tokens": None} == {**vars(one), "seconds": 0.0}
            said.append(one.answer)
    assert not answers(quizzed, "base")["answer"].equals(answers(quizzed, "checkpoint")["answer"])


def _at(question: str, turn: int) -> pl.Expr:
    return (pl.col("question_id") == question) & (pl.col("turn") == turn)


def test_answers_are_graded(quizzed: Pipeline) -> None:
    for variant in VARIANTS:
        table = quizzed.state().store.read("scores/quiz", variant)
        letters = answers(quizzed, variant).group_by("question_id").agg(pl.col("answer").str.len_chars().mean())
        assert dict(table.select("question_id", "value").iter_rows()) == dict(letters.iter_rows())
        assert table["question_id"].is_sorted() and table.height == 5


@pytest.mark.parametrize(("thoughts", "values"), [("drop", [100, 100, 0]), ("keep", [100 / 3, 100 / 3, 0])])
def test_thoughts_before_an_answer_are_left_out_of_its_grade(
    tmp_path: Path, thoughts: str, values: list[float]
) -> None:
    write_jsonl(tmp_path / "data" / "hotpotqa.jsonl", [row(n, answers=["Oslo"]) for n in range(3)])
    write_prompts(tmp_path / "config", ["hotpotqa"])
    options = {"data": "data", "prompts": "config", "sets": ["hotpotqa"]}
    evaluation = {"benchmarks": ["longbench"], "longbench": options, "thoughts": thoughts}
    file = make_project(tmp_path, samples=4, shards=1, training=True, evaluation=evaluation)
    ids = [f"hotpotqa/0-4k/id{n}" for n in range(3)]
    said = ["<think>Norway's city is it.</think>\n\nOslo", "Norway's city is\n</think>\n\nOslo", "<think>Oslo"]
    with pipeline_on(file) as pipeline:
        store = pipeline.state().store
        store.write(given(dict(zip(ids, said, strict=True))), "answers/longbench", "base", Stamp(fingerprint="f"))
        (event,) = pipeline.make("scores/longbench", "base").asset_materializations_for_node("scores__longbench")
        assert str(event.metadata["thoughts"].value).startswith("3 of 3 answers begin with thoughts")
        found = store.read("scores/longbench", "base").sort("question_id")["value"].to_list()
        assert found == pytest.approx(values)
        assert store.read("answers/longbench", "base")["answer"].to_list() == said


def test_only_what_changed_is_made_again(quizzed: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    assert scored(quizzed) == {}
    before = {name: answers(quizzed, name) for name in VARIANTS}
    with monkeypatch.context() as nothing:
        nothing.setattr(InProcess, "answers", None)
        found = scored(quizzed, quiz={"questions": 5, "worth": 2.0})
    assert {*found} == {(f"{kind}/quiz", name) for kind in ("answers", "scores") for name in VARIANTS}
    assert value_of(found["answers/quiz", "base"], "kept") == 7
    more = scored(quizzed, quiz={"questions": 6, "worth": 2.0})
    assert value_of(more["answers/quiz", "base"], "answered") == 2, "both turns of the new question"
    for name, table in before.items():
        assert answers(quizzed, name).head(7).equals(table)


def test_a_benchmark_with_the_same_questions_takes_the_answers_over(quizzed: Pipeline) -> None:
    asked = answers(quizzed, "base")["question_id"].n_unique()
    again = {"benchmarks": [*ALL, "quiz_again"], "quiz_again": {"questions": asked + 1}}
    found = quizzed.made("scores/quiz_again", evaluation=again)
    turns = 1 + asked % 2
    for name in VARIANTS:
        assert value_of(found["answers/quiz_again", name], "answered") == turns, "those of the one new question"
        table = quizzed.state().store.read("answers/quiz_again", name)
        assert table.head(table.height - turns).equals(answers(quizzed, name))
    change_config(quizzed.file, evaluation={"benchmarks": ALL})


@pytest.mark.long
def test_answers_that_are_taken_over_from_an_equal_model_can_be_kept_like_its_own(quizzed: Pipeline) -> None:
    change_config(quizzed.file, variants={"methods": ["gateau"]})
    assert value_of(scored(quizzed)["answers/quiz", "gateau"], "same_as") == "checkpoint"
    scorers = {quizzed.stamp("answers/quiz", name).scorer for name in ("checkpoint", "gateau")}
    assert len(scorers) == 1 and all(scorers), "else all would be asked again once one of the two is another model"
    content = yaml.safe_load(quizzed.file.read_text())
    del content["variants"]
    quizzed.file.write_text(yaml.safe_dump(content))


def test_what_a_server_refuses_is_asked_again_of_another_one(quizzed: Pipeline) -> None:
    """The others' answers are kept; of the same server nothing more is expected."""

    def narrow(number: int, path: str, body: dict[str, Any]) -> Reply:
        long = "noun1" in body["prompt"] and body["model"] == "base"
        return refusal(400, "longer than its window") if long else completion("yes", chat=False)

    with answering(narrow) as running, answering(lambda *_: completion("no", chat=False)) as wide:
        scored(quizzed, quiz={"questions": 3}, engine={"base_url": running.address})
        assert quizzed.state().read_rejected("answers/quiz")["sample_id"].to_list() == ["q001"]
        assert answers(quizzed, "base").height == 2 and scored(quizzed) == {}
        change_config(quizzed.file, evaluation={"engine": {"base_url": wide.address}})
        work = quizzed.state().plan().of("answers/quiz")
        assert work is not None and "evaluation.engine changed" in work.reasons["base"]
        assert {*scored(quizzed)} == {("answers/quiz", "base"), ("scores/quiz", "base")}
        assert answers(quizzed, "base")["answer"].to_list() == ["yes", "no", "no", "yes"] and len(wide.requests) == 2
    change_config(quizzed.file, evaluation={"engine": None})


@pytest.mark.long
def test_a_server_answers_in_the_place_of_this_process(quizzed: Pipeline) -> None:
    with answering(lambda number, path, body: completion(f"said by {body['model']}", chat=False)) as running:
        engine = {"base_url": running.address, "model": "the {variant}"}
        scored(quizzed, quiz={"questions": 2}, engine=engine)
        assert len(running.requests) == 6
        for name in VARIANTS:
            assert answers(quizzed, name)["answer"].to_list() == [f"said by the {name}"] * 3
        assert scored(quizzed, engine={**engine, "concurrency": 2}) == {}
    change_config(quizzed.file, evaluation={"engine": None})


@pytest.mark.long
def test_a_ray_cluster_answers_as_this_process_does(quizzed: Pipeline, whole_run: Path, tmp_path: Path) -> None:
    shutil.copytree(whole_run.parent, tmp_path / "project")
    file = tmp_path / "project" / "gateau.yaml"
    change_config(file, evaluation={"benchmarks": ALL, "quiz": {"questions": 5}}, scoring={"batch_tokens": 100})
    with ray_cluster(1) as cluster, with_quiz():
        ray = {"address": cluster.address, "workers": 1, "gpus": 0, "cpus": 1}
        change_config(file, execution={"ray": ray})
        with pipeline_on(file) as pipeline:
            pipeline.refresh("scores/quiz")
            scored(quizzed, quiz={"questions": 5})  # other tests ask it otherwise
            for name in VARIANTS:
                there, here = answers(pipeline, name), answers(quizzed, name)
                assert there.drop("seconds").equals(here.drop("seconds"))


QUESTIONS = [question("b", "one", "two"), question("a"), question("c")]


def bring(
    store: Store,
    engine: Noting,
    questions: Sequence[Question] = QUESTIONS,
    scorer: str = "s",
    contents: Any = None,
    asset: str = "answers/x",
    shared: Sequence[str] = (),
) -> AnsweringResult:
    def write(table: pl.DataFrame, rejected: pl.DataFrame, content: str, unanswered: Sequence[str]) -> None:
        stamp = Stamp(fingerprint="f", scorer=scorer).without(unanswered, "m")
        store.write(table, asset, "v", stamp, rejected)
        if contents is not None:
            contents.append(content)

    return answer_questions(
        store,
        asset,
        "v",
        scorer=scorer,
        questions=questions,
        engine=lambda: engine,
        write=write,
        progress=lambda *_, **__: None,
        shared=shared,
    )


def test_answers_are_a_table_in_order_and_are_not_asked_for_twice(tmp_path: Path) -> None:
    store, first, again = Store(str(tmp_path)), Noting(), Noting()
    bring(store, first, contents=(contents := []))
    table = store.read("answers/x", "v")
    assert table.schema == tables.schema(tables.ANSWERS)
    assert table.select("question_id", "turn").rows() == [("a", 0), ("b", 0), ("b", 1), ("c", 0)]
    assert bring(store, again, contents=contents).made == [] and again.asked == []
    assert store.read("answers/x", "v").equals(table) and contents[0] == contents[1]
    assert not store.files.names("_partial/answers/x")


def test_another_model_or_question_is_asked(tmp_path: Path) -> None:
    store, other, changed = Store(str(tmp_path)), Noting(lambda asked: "other"), Noting()
    bring(store, Noting())
    bring(store, other, scorer="t")
    assert len(other.asked) == 4
    found = bring(store, changed, [QUESTIONS[0], question("a", "another")], scorer="t")
    assert [name for name, *_ in changed.asked] == ["a"] and len(found.kept) == 2
    assert store.read("answers/x", "v")["question_id"].to_list() == ["a", "b", "b"]


def test_a_prompt_that_was_read_in_part_is_kept_beside_older_rows_and_reported(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    bring(store, Noting(), QUESTIONS[:2])
    assert tables.UNREAD.name not in store.columns("answers/x", "v"), "as earlier versions wrote it"
    bring(store, Noting(unread=90), contents=(contents := []))
    table = store.read("answers/x", "v")
    assert table["unread_tokens"].to_list() == [None, None, None, 90]
    assert "1 of 4 prompts read in part only" in partly_read_answers(table)
    bring(store, again := Noting(), contents=contents)
    assert again.asked == [] and store.read("answers/x", "v").equals(table) and contents[0] == contents[1]


def said(asked: AskedTurn) -> str:
    return f"{asked.question.question_id}{asked.turn}"


def interrupted(store: Store, after: int) -> list[str]:
    """The answers of a run that ends within the group of this answer."""
    answered: list[str] = []

    def until(asked: AskedTurn) -> str:
        if len(answered) == after:
            raise KeyboardInterrupt
        answered.append(said(asked))
        return answered[-1]

    with pytest.raises(KeyboardInterrupt):
        bring(store, Noting(until))
    assert store.stamp("answers/x", "v") is None
    return answered


def test_what_was_answered_before_an_end_is_not_asked_again(tmp_path: Path) -> None:
    store, whole = Store(str(tmp_path / "broken")), Store(str(tmp_path / "whole"))
    assert interrupted(store, 3) == ["b0", "a0", "c0"]
    assert interrupted(store, 0) == []
    last = Noting(said)
    bring(store, last)
    assert last.asked == [("b", 1, ("b0",))]
    bring(whole, Noting(said))
    assert whole.read("answers/x", "v").equals(store.read("answers/x", "v"))


def test_the_seconds_that_answers_took_are_no_part_of_their_content(tmp_path: Path) -> None:
    contents: list[str] = []
    for seconds, engine in ((0.5, Noting()), (99.0, Noting()), (0.5, Noting(said))):
        engine.seconds = seconds
        bring(Store(str(tmp_path / str(len(contents)))), engine, contents=contents)
    assert contents[0] == contents[1] != contents[2]


def test_a_refused_question_has_no_row_and_is_lacking(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    bring(store, Noting(lambda asked: None if asked.turn else "yes"))
    assert store.read("answers/x", "v")["question_id"].to_list() == ["a", "c"]
    assert store.read_rejected("answers/x", ["v"]).rows() == [("b", "it will not")]
    stamp = store.stamp("answers/x", "v")
    assert stamp is not None and (stamp.complete, stamp.lacking) == ("f", "m")


def test_what_another_benchmark_asked_is_not_asked_again(tmp_path: Path) -> None:
    store, more, other = Store(str(tmp_path)), Noting(said), Noting(said)
    bring(store, Noting(said))
    questions = [*QUESTIONS[:2], question("c", "asked otherwise"), question("d")]
    bring(store, more, questions, asset="answers/y", shared=["answers/x"])
    assert [name for name, *_ in more.asked] == ["c", "d"]
    rows = [store.read(f"answers/{name}", "v").filter(pl.col("question_id").is_in(["a", "b"])) for name in ("x", "y")]
    assert rows[0].equals(rows[1]) and rows[0].height == 3
    bring(store, other, questions, asset="answers/z", shared=["answers/x"], scorer="of another model")
    assert len(other.asked) == 5


class Exam(Unmeasured):
    name = "exam"
    options: Section
    columns = (Column(name="model", dtype=pl.String(), description="A model."),)

    def measure(self, materials: Materials, variant: str) -> Measured:
        return Measured(table=pl.DataFrame({"model": [variant]}))

    def compare(self, measured: Mapping[str, Measured]) -> Measured:
        return Measured(table=pl.concat(each.table for each in measured.values()))

    def section(self, table: pl.DataFrame) -> PageSection:
        figure = PageFigure(name="large", draw=lambda: new_figure("large")[0], alt="", caption="")
        return PageSection(sentences=[], figures=[figure], chart=self.chart(table))

    def chart(self, table: pl.DataFrame) -> PageChart | None:
        return PageChart(name="Points (%)", amounts=[PageAmount(name=name, value=5.0) for name in table["model"]])


class ExamWithoutChart(Exam):
    def chart(self, table: pl.DataFrame) -> PageChart | None:
        return None


@pytest.mark.parametrize("kind", [Exam, ExamWithoutChart])
def test_its_chart_stands_in_place_and_its_figures_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exam]
) -> None:
    known: Any = all_benchmarks()
    monkeypatch.setitem(known, "exam", kind)
    file = make_project(tmp_path, samples=4, shards=1, training=True, evaluation={"benchmarks": ["exam"]})
    with pipeline_on(file) as pipeline:
        checkpoint = Stamp(fingerprint="f", content="c").to_json()
        pipeline.state().store.files.write("checkpoint/gateau.json", checkpoint.encode())
        done = pipeline.make("evaluation/exam")
    (event,) = done.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert str(metadata["large"].value).startswith("![") and not in_place(metadata["large"])
    assert ("points" in metadata) is (kind is Exam)
    assert kind is not Exam or in_place(metadata["points"])


def test_progress_is_that_over_both_models() -> None:
    class Counted(Unmeasured):
        def measure(self, materials: Materials, variant: str) -> Measured:
            for done in (1, 2):
                materials.progress(done, 2, "samples", variant)
            return Measured.of([])

    seen: list[tuple[Any, ...]] = []
    given = replace(NO_MATERIALS, progress=lambda done, total, unit, note="": seen.append((done, total, unit, note)))
    assert [*measured_models(Counted(given.config, Section()), given)] == ["base", "checkpoint"]
    expected = [(1, "base"), (2, "base"), (3, "checkpoint"), (4, "checkpoint")]
    assert seen == [(done, 4, "samples", name) for done, name in expected]


def test_shards_with_and_without_conversations_are_read_together(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    rows = [{**sample(number), "sample_id": f"s{number}", "digest": ""} for number in range(3)]
    talk = '{"messages": []}'
    for shard, frame in {
        "0": pl.DataFrame(rows[:2]),
        "1": pl.DataFrame(rows[2:]).with_columns(conversation=pl.lit(talk)),
    }.items():
        store.write(frame, "raw_long_sft", shard, Stamp(fingerprint=shard))
    asset = SimpleNamespace(reads=())
    state: Any = SimpleNamespace(store=store, shards=["0", "1"], config=None, asset=lambda _: asset)
    found = materials(state, "evaluation/heldout", state, silent).samples(["s0", "s2"])
    assert [(each.sample_id, each.conversation) for each in found] == [("s0", ""), ("s2", talk)]
