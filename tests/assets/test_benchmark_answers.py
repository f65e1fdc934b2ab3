"""Answers and scores of the models of a small project: made once, kept where nothing changed, asked where it did."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from gateau_dagster.config import ModelConfig
from gateau_dagster.evaluation.benchmark import QuestionBenchmark
from gateau_dagster.evaluation.generation.answering import Answer, AskedTurn
from gateau_dagster.evaluation.generation.in_process import InProcess
from gateau_dagster.evaluation.generation.prompts import PromptBuilder
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.models.loading import load_model
from gateau_dagster.storage import Stamp
from tests.assets.harness import Made, Pipeline, pipeline_on, value_of
from tests.evaluation.builders import answers as given
from tests.evaluation.builders import write_jsonl
from tests.evaluation.mt_bench_files import NO_MATERIALS
from tests.evaluation.quiz import with_quiz
from tests.evaluation.test_longbench import row, write_prompts
from tests.fake_server import Reply, answering, completion, refusal
from tests.project import change_config, make_project
from tests.ray_cluster import ray_cluster

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
    """What a run makes after these changes, but the checkpoint."""
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
    for question in quiz.questions(NO_MATERIALS):
        said: list[str] = []
        for turn in range(len(question.turns)):
            ((one,),) = alone.answers([AskedTurn(question=question, answers=tuple(said))], {question.question_id})
            row = answers(quizzed, "base").row(by_predicate=_at(question.question_id, turn), named=True)
            assert isinstance(one, Answer)
            assert {**row, "seconds": 0.0} == {**vars(one), "seconds": 0.0}
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
