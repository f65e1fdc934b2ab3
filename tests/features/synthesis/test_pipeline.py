"""Synthetic samples of a small project over HTTP: asked once, within the budget, and read by long_sft."""

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.cli.plan import print_plan
from gateau_dagster.errors import GateauError
from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import Checking, Given, answer_probabilities
from gateau_dagster.features.synthesis.config import SYNTHETIC_SAMPLES
from gateau_dagster.features.synthesis.declarations import figure_digests
from gateau_dagster.features.synthesis.forecast import measured_yield, planned_synthesis
from gateau_dagster.features.synthesis.passages import PROLONG_KINDS
from gateau_dagster.features.synthesis.questions import answer_prompt, question_prompt
from gateau_dagster.features.synthesis.scripted_generator import ScriptedGenerator, demo_document, serving
from gateau_dagster.features.synthesis.trial import print_synthesis
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State
from tests.assets.harness import pipeline_on
from tests.kit.error_codes import refused
from tests.kit.fake_server import BEHAVIOURS, FakeServer, Handler
from tests.kit.fake_server import serving as serving_fake
from tests.kit.project import change_config, make_project

COUNT = 12
# An untrained theta_B tells nothing: its figures are computed, and refuse nobody.
OPEN = {"closed_book": 0.0, "near_only": None, "needed": 0.0, "robust": 1.0}


def project(folder: Path, address: str, *, documents: int = 6, paths: Any = "synthetic:", **synthesis: Any) -> Path:
    generator = {"base_url": address, "model": "scripted", "key": None, "retries": 0, "concurrency": 2}
    generator |= {"window": 768, "max_tokens": 256}
    given = {
        "documents": "docs/*.txt",
        "count": COUNT,
        "shards": 2,
        "lengths": {800: 1.0},
        "passage_words": 24,
        **({} if synthesis.get("preset") == "prolong" else {"checks": OPEN}),
        **{name: value for name, value in synthesis.items() if value is not None},
        "generator": {**generator, **synthesis.get("generator", {})},
    }
    file = make_project(folder, samples=6, shards=2, synthesis=given, selection={"method": "length", "fraction": 0.5})
    change_config(file, long_sft={"path": paths, "shards": 2})
    (folder / "docs").mkdir(exist_ok=True)
    for number in range(documents):
        (folder / "docs" / f"{number}.txt").write_text(demo_document(number))
    return file


def table(state: State, asset: str) -> pl.DataFrame:
    return pl.concat([state.store.read(asset, str(part)) for part in state.pipeline.partitions(asset)])


def test_samples_are_written_checked_read_and_asked_once(tmp_path: Path) -> None:
    with serving(ScriptedGenerator(cheats=0.3)) as server:
        file = project(tmp_path, server.base_url, paths=["long.jsonl", "synthetic:"], checks={**OPEN, "robust": 0.0})
        with pipeline_on(file) as pipeline:
            state = pipeline.state()
            plan = state.plan()
            assert {work.asset for work in plan.work} == {
                *("synthetic/passages", "synthetic/questions", "synthetic/contexts", "synthetic/checks"),
                SYNTHETIC_SAMPLES,
            }, "what reads the samples waits for them"
            planned = planned_synthesis(state, plan)
            assert planned is not None and planned.candidates == COUNT and planned.expected is None
            pipeline.refresh(SYNTHETIC_SAMPLES)
            _another_threshold(file, pipeline, server)
            pipeline.refresh("raw_long_sft")
            state = pipeline.state()
            checks, found = table(state, CHECKS_TABLE), table(state, SYNTHETIC_SAMPLES)
            assert COUNT - 2 <= checks.height <= COUNT, "a shard with one document offers fewer"
            assert 0 < found.height == checks["accepted"].sum() < checks.height
            assert {*checks.filter(~pl.col("accepted"))["reason"]} <= {"verbatim", "agreement", "declined", "duplicate"}
            sources = state.read("raw_long_sft")["source"].value_counts()
            assert sources.filter(pl.col("source").str.starts_with("synthetic/"))["count"].sum() == found.height
            assert sources["count"].sum() == 6 + found.height
            measured = measured_yield(state)
            assert measured is not None and measured.accepted == found.height
            assert pipeline.refresh("raw_long_sft").run_ids == []
            _another_document(file, pipeline, len(server.prompts), server)


def _another_threshold(file: Path, pipeline: Any, server: ScriptedGenerator) -> None:
    """A stricter threshold asks nobody; a looser one asks what the plan says."""
    before = table(pipeline.state(), CHECKS_TABLE)
    newly = before.filter(pl.col("kind") != "summary", reason="robust").height
    for robust, requests, accepted in (
        (1.0, newly, None),
        (0.0, 0, before["accepted"].sum()),
        (1.0, 0, None),
    ):
        asked = len(server.prompts)
        change_checks(file, robust=robust)
        state = pipeline.state()
        plan = state.plan()
        assert {work.asset for work in plan.work} == {CHECKS_TABLE, SYNTHETIC_SAMPLES}
        planned = planned_synthesis(state, plan)
        assert planned is not None and (planned.candidates, planned.kept) == (0, before.height)
        assert planned.answers.cost is not None and planned.answers.most is not None
        assert planned.answers.cost.usage.requests == planned.answers.most.usage.requests == requests
        pipeline.refresh(SYNTHETIC_SAMPLES)
        assert len(server.prompts) == asked + requests
        after = table(pipeline.state(), CHECKS_TABLE)
        assert after["closed_book"].equals(before["closed_book"])
        assert accepted is None or after["accepted"].sum() == accepted
    assert newly and len(server.prompts) == len({*server.prompts}), "nobody is asked twice"


def _another_document(file: Path, pipeline: Any, asked: int, server: ScriptedGenerator) -> None:
    (file.parent / "docs" / "more.txt").write_text(demo_document(99))
    plan = pipeline.state().plan()
    (shards,) = {tuple(work.partitions) for work in plan.work}
    assert len(shards) == 1, "its shard alone"
    pipeline.refresh(SYNTHETIC_SAMPLES)
    assert asked < len(server.prompts) <= asked + COUNT
    documents = table(pipeline.state(), PASSAGES_TABLE)["document"]
    assert documents.n_unique() == 7


def change_checks(file: Path, **checks: Any) -> None:
    import yaml

    content = yaml.safe_load(file.read_text())
    content["synthesis"]["checks"] = {**content["synthesis"]["checks"], **checks}
    file.write_text(yaml.safe_dump(content))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a project whose synthetic samples are made."""
    return made_in(tmp_path_factory.mktemp("made") / "project")


def made_in(folder: Path) -> Path:
    with serving(ScriptedGenerator(cheats=0.5)) as server:
        paths = ["long.jsonl", "synthetic:"]
        file = project(folder, server.base_url, paths=paths, generator={"concurrency": 1})
        with pipeline_on(file) as pipeline:
            pipeline.refresh(SYNTHETIC_SAMPLES)
    return file


@pytest.mark.long
def test_the_same_seed_gives_the_same_samples(made: Path, tmp_path: Path) -> None:
    one, two = (
        table(state_of(config=load_project(file)), SYNTHETIC_SAMPLES) for file in (made, made_in(tmp_path / "again"))
    )
    assert one.height and one.equals(two)


@pytest.mark.long
def test_prolong_asks_about_one_chunk_and_checks_nothing(tmp_path: Path) -> None:
    with serving(ScriptedGenerator(cheats=1.0)) as server:
        file = project(tmp_path, server.base_url, preset="prolong", count=20, checks=None)
        with pipeline_on(file) as pipeline:
            pipeline.refresh(SYNTHETIC_SAMPLES)
            state = pipeline.state()
            asked, checks = table(state, QUESTIONS_TABLE), table(state, CHECKS_TABLE)
            contexts, samples = table(state, CONTEXTS_TABLE), table(state, SYNTHETIC_SAMPLES)
            assert {*asked["kind"]} == {*PROLONG_KINDS}
            assert asked.filter(pl.col("kind") != "prolong_summary")["passages"].list.len().unique().to_list() == [1]
            assert {*checks["reason"]} <= {"", "duplicate", "declined"} and checks[
                "verbatim"
            ].null_count() == checks.height
            assert samples.height == contexts.height == checks["accepted"].sum() > 10
            assert contexts["tokens"].max() <= 800  # pyright: ignore[reportOperatorIssue]
            planned = planned_synthesis(state, state.whole_plan())
            assert planned is None, "everything is up to date"


@pytest.mark.long
def test_variants_are_trained_on_accepted_samples_and_on_as_many_candidates(made: Path, tmp_path: Path) -> None:
    """A moved store asks nobody again: its generator is gone."""
    file = shutil.copytree(made.parent, tmp_path / "moved") / made.name
    also = {"also": ["synthetic_verified", "synthetic_unverified"], "methods": ["length"]}
    change_config(file, variants=also, training={"enabled": True}, evaluation={"benchmarks": []})
    with pipeline_on(file) as pipeline:
        pipeline.refresh("variant/selected_subset")
        state = pipeline.state()
        accepted = table(state, SYNTHETIC_SAMPLES)
        verified, other = (state.read("variant/selected_subset", partition=name) for name in also["also"])
        assert verified["sample_id"].sort().equals(accepted["sample_id"].sort())
        assert other.height == verified.height and not other["sample_id"].equals(verified["sample_id"])


def test_above_the_budget_nothing_is_asked(tmp_path: Path) -> None:
    with serving(ScriptedGenerator()) as server:
        file = project(tmp_path, server.base_url, generator={"budget": {"requests": COUNT - 1}})
        with pipeline_on(file) as pipeline, pytest.raises(GateauError, match=r"synthesis\.generator\.budget"):
            pipeline.refresh(SYNTHETIC_SAMPLES)
        assert server.prompts == []


def test_validate_measures_the_yield_and_its_replies_are_kept(tmp_path: Path) -> None:
    with serving(ScriptedGenerator(cheats=0.3)) as server:
        file = project(tmp_path, server.base_url)
        print_synthesis(load_project(file))
        state = state_of(config=load_project(file))
        planned = planned_synthesis(state, state.plan())
        assert planned is not None and 0 < (planned.expected or 0) < COUNT
        assert not state.store.stamps([(CHECKS_TABLE, "d0")])[CHECKS_TABLE, "d0"], "no table is written"
        with pipeline_on(file) as pipeline:
            pipeline.refresh(SYNTHETIC_SAMPLES)
        assert len(server.prompts) == len({*server.prompts}), "nothing is asked twice"


# Those of the server: there is no reply.
UNANSWERED = {
    name: BEHAVIOURS[name].act
    for name in ("429 always", "500 always", "hang", "half body", "truncated JSON", "empty", "cut", "page")
}
# Those of the reply, which is no question.
UNREADABLE: dict[str, Callable[[Handler], None]] = {
    "nonsense": lambda it: it.say("I would rather not."),
    "half JSON": lambda it: it.say('{"question": "recall'),
    "other JSON": lambda it: it.say(json.dumps({"question": 5, "answer": ["x"], "evidence": {}})),
    "list": lambda it: it.say("[1, 2]"),
    "surrogate": lambda it: it.say('{"question": "\\ud800", "answer": "x", "evidence": []}'),
}


class FaultyServer(FakeServer):
    """It fails in each way in turn, and answers each second prompt; a prompt meets the same fault again."""

    def __init__(self) -> None:
        super().__init__(self.answer)
        self.honest = ScriptedGenerator()
        self.honest.server_close()
        self.turn = itertools.cycle([each for name in (*UNANSWERED, *UNREADABLE) for each in ("", name)])
        self.faults: dict[str, str] = {}

    def answer(self, handler: Handler) -> None:
        prompt = handler.body.get("prompt") or handler.body["messages"][-1]["content"]
        with self.lock:
            if prompt not in self.faults:
                self.faults[prompt] = next(self.turn)
            fault = self.faults[prompt]
        if fault:
            (UNANSWERED | UNREADABLE)[fault](handler)
        else:
            handler.say(self.honest.reply({**handler.body}))


def test_each_candidate_is_accepted_refused_or_counted(tmp_path: Path) -> None:
    with serving_fake(FaultyServer()) as server:
        shares = {"two_passages": 0.7, "count": 0.3}
        # More at once, so that as many failures in a row do not mean that the server is down.
        generator = {"timeout": 1.0, "concurrency": 8}
        file = project(tmp_path, server.address, count=32, shards=1, kinds=shares, generator=generator)
        with pipeline_on(file) as pipeline:
            pipeline.refresh(SYNTHETIC_SAMPLES)
            state = pipeline.state()
            passages, asked, checks = (table(state, each) for each in (PASSAGES_TABLE, QUESTIONS_TABLE, CHECKS_TABLE))
            lost, unchecked = ({*state.read_rejected(each)["sample_id"]} for each in (QUESTIONS_TABLE, CHECKS_TABLE))
            assert passages.height == asked.height + len(lost) and asked.height == checks.height + len(unchecked)
            questions, reasons = (
                dict(each.select("sample_id", name).iter_rows())
                for each, name in ((asked, "question"), (checks, "reason"))
            )
            for row in passages.iter_rows(named=True):
                name, texts = row["sample_id"], [each["text"] for each in row["passages"]]
                fault = server.faults[question_prompt(row["kind"], texts)]
                assert (name in lost) == (fault in UNANSWERED)
                assert (reasons.get(name) == "unreadable") == (fault in UNREADABLE)
                if (
                    not fault
                    and name in reasons
                    and (again := server.faults.get(answer_prompt(questions[name], texts)))
                ):
                    assert again in UNREADABLE and reasons[name] == "agreement"
            assert (
                {*server.faults.values()} == {"", *UNANSWERED, *UNREADABLE} and unchecked and checks["accepted"].any()
            )
            assert state.plan_until(SYNTHETIC_SAMPLES).work == [], "what is lost is not asked for in each run"


def with_made_theta_b(folder: Path, address: str) -> Path:
    """A project whose theta_B the pipeline makes."""
    file = project(folder, address)
    made = {"texts": "docs", "length": 256, "tokens": 2048, "tokens_per_step": 512}
    change_config(file, models={"long": {"path": "homologous:short", "homologous": made}})
    return file


def test_a_theta_b_that_is_still_to_be_made_is_planned_and_nothing_is_asked_before(tmp_path: Path) -> None:
    with serving(ScriptedGenerator()) as server:
        config = load_project(with_made_theta_b(tmp_path, server.base_url))
        state = state_of(config=config)
        plan = state.plan()
        assert [work.asset for work in plan.work][:3] == [
            "homologous_mix/long",
            "homologous_model/long",
            "synthetic/passages",
        ]
        planned = planned_synthesis(state, plan)
        assert planned is not None and planned.candidates == COUNT
        print_plan(config, None)
        with refused("models.not_made", match=r"models\.long.*gateau run --until homologous_model/long"):
            print_synthesis(config)
        assert server.prompts == []


def test_figures_go_by_the_content_of_a_theta_b_that_is_made(tmp_path: Path) -> None:
    state = state_of(config=load_project(with_made_theta_b(tmp_path, "http://localhost:1/v1")))
    one, other, again = (figure_digests(state.config, state.observed, version) for version in "aba")
    assert one == again and one.model != other.model


def test_records_without_a_text_and_too_few_candidates_are_reported(tmp_path: Path) -> None:
    paths = ["docs/*.txt", "docs/*.jsonl"]
    file = project(tmp_path, "http://127.0.0.1:9/v1", documents=1, count=1000)
    change_config(file, synthesis={"documents": paths})
    (tmp_path / "docs" / "more.jsonl").write_text('{"body": "A text."}\n' * 2)
    before = checks_of(state_of(config=load_project(file))).warnings
    rejected = "synthesis.documents: 2 of 3 records rejected (66.7 %): 2 x no text"
    few = "1 of 2 shards have no document; lower synthesis.shards, or add documents"
    assert [each for each in before if "synthesis" in each] == [
        rejected,
        f"synthesis.count: at most 500 of 1,000 candidates: {few}",
    ]
    with pipeline_on(file) as pipeline:
        pipeline.refresh(PASSAGES_TABLE)
        state = pipeline.state()
        made = table(state, PASSAGES_TABLE).height
        assert 0 < made < 500
        assert [each for each in checks_of(state).warnings if "synthesis" in each] == [
            rejected,
            f"synthesis.count: {made} of 1,000 candidates: {few}",
        ]
        lost = state.read_rejected(PASSAGES_TABLE)
        assert sorted(lost["sample_id"]) == ["more.jsonl:1", "more.jsonl:2"]
        assert lost["reason"].unique().to_list() == ["no text: the field 'text' is missing"]


@pytest.mark.long
def test_theta_b_reads_nothing_twice_after_a_run_that_ends_at_the_second_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Given] = []

    def counting(loaded: Any, given: Sequence[Given], *others: Any, **more: Any) -> Iterator[Any]:
        read.extend(given)
        return answer_probabilities(loaded, given, *others, **more)

    def ended(*_: Any) -> None:
        raise GateauError("evaluation.budget", "the budget is used up")

    monkeypatch.setattr("gateau_dagster.features.synthesis.assets.answer_probabilities", counting)
    with serving(ScriptedGenerator()) as server:
        file = project(tmp_path, server.base_url, shards=1)
        with pipeline_on(file) as pipeline:
            with monkeypatch.context() as around, pytest.raises(GateauError, match="the budget is used up"):
                around.setattr(Checking, "_ask_again", ended)
                pipeline.refresh(SYNTHETIC_SAMPLES)
            first = len(read)
            pipeline.refresh(SYNTHETIC_SAMPLES)
            state = pipeline.state()
            assert first and len(read) == first and table(state, CHECKS_TABLE)["accepted"].any()
            assert not [*state.store.files.names(f"_partial/{CHECKS_TABLE}")], "a complete table needs no other rows"
            change_checks(file, agreement=None)
            pipeline.refresh(SYNTHETIC_SAMPLES)
            assert len(read) == first, "theta_B's figures do not go by the second answers"
            change_checks(file, near_only=0.0, near_tokens=1)
            pipeline.refresh(SYNTHETIC_SAMPLES)
            assert 0 < len(read) - first <= COUNT, "the ends alone"
