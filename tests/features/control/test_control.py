"""Run the pipeline to the table `control`: what it holds, when it is made again, and what it says."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from gateau_dagster.cli.plan import plan_record
from gateau_dagster.cli.show import print_trust
from gateau_dagster.explanation.trust import trust_lines
from gateau_dagster.features.control.assets import shown_samples
from gateau_dagster.features.control.design import Words, exchanged
from gateau_dagster.features.control.result import control_result
from gateau_dagster.models.prompt import open_tokenizer
from gateau_dagster.selection.combine import MEASURES
from gateau_dagster.selection.statistics import auroc
from tests.assets.harness import Pipeline, pipeline_on, value_of
from tests.kit.project import make_project, sample, write_samples

RECORDS = [sample(number, sentences=24) for number in range(24)]
for number, record in enumerate(RECORDS):
    fact, text = f"note {record['response']}", record["context"]
    record["context"] = f"{fact} {text}" if number % 2 else f"{text} {fact}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """24 samples, of which each second one has its fact in far text."""
    folder = tmp_path_factory.mktemp("control")
    file = make_project(folder, shards=2, selection={"evidence": "control"})
    write_samples(folder / "long.jsonl", RECORDS)
    with pipeline_on(file) as pipeline:
        yield pipeline


def exchanged_of(pipeline: Pipeline) -> pl.DataFrame:
    return pipeline.state().store.read("control", None).filter(role="exchanged")


def test_the_control_is_scored_like_any_samples_and_only_once(made: Pipeline, tmp_path: Path) -> None:
    plan = made.state().plan_until(None)
    assert plan_record(made.state(), plan)["control"]["samples"] == 24
    events = made.made(until="combined_scores") | made.made(until="control")
    table = made.state().store.read("control", None)
    far = table.filter(role="far")
    odd = {record["id"] for record in RECORDS[1::2]}
    assert far.height >= 8 and {*far["sample_id"]} <= odd and far["far_gain"].is_null().all()
    measured = exchanged_of(made)
    assert measured.height == value_of(events["control", None], "scored") == 24
    assert value_of(events["control", None], "auroc") == pytest.approx(control_result(made.state()).auroc, abs=1e-3)
    # Another project has the exchanged texts as its data: it scores them the same.
    shown = shown_samples(made.state(), open_tokenizer(made.file.parent / "long"))
    others = [exchanged(shown, place, Words(shown)) for place in range(len(shown))]
    file = make_project(tmp_path, shards=1)
    texts = ("source", "context", "instruction", "response")
    records = [{"id": each.sample_id, **{name: getattr(each, name) for name in texts}} for each in others]
    write_samples(tmp_path / "long.jsonl", records)
    with pipeline_on(file) as pipeline:
        pipeline.refresh("combined_scores")
        columns = ["sample_id", "probability_short", "probability_long", "perplexity_long", "segments"]
        wanted = pipeline.state().store.read("combined_scores", None)
        both = (frame.select(columns).sort("sample_id") for frame in (measured, wanted))
        assert_frame_equal(*both, rel_tol=1e-5)
        # The AUROC by hand: of samples worded as their far text, and of the same scores in the other project.
        own = made.state().store.read("combined_scores", None)
        scores = [*own.filter(pl.col("sample_id").is_in(far["sample_id"].implode()))["score"], *wanted["score"]]
        result = control_result(made.state())
        assert result.auroc == pytest.approx(auroc(scores, [True] * far.height + [False] * wanted.height))
    assert made.made(until="control") == {}


def test_only_what_changed_is_read_again(made: Pipeline) -> None:
    made.refresh("control")
    before = exchanged_of(made).drop("digest")
    events = made.made(until="control", selection={"preset": "official", "alpha": 0.7})
    assert ("control", None) not in events, "a ranking reads the same figures"
    assert control_result(made.state()).auroc is not None
    write_samples(made.file.parent / "long.jsonl", [{**RECORDS[0], "response": "another one ."}, *RECORDS[1:]])
    events = made.made(until="control")
    assert 1 <= value_of(events["control", None], "scored") < 24
    after = exchanged_of(made).drop("digest")
    same = after.join(before, on=["sample_id", *MEASURES.names()[1:]], how="semi", nulls_equal=True)
    assert same.height >= 24 - value_of(events["control", None], "scored")
    write_samples(made.file.parent / "long.jsonl", RECORDS)
    made.made(until="control", selection={"preset": "robust", "alpha": None})
    narrow = {"short": {"path": "short", "context": "window", "window": 48}, "long": {"path": "long"}}
    events = made.made(until="control", models=narrow)
    assert value_of(events["control", None], "scored") == 24, "another window has another border"


def test_the_panel_says_in_words_what_was_found(made: Pipeline, capfd: pytest.CaptureFixture[str]) -> None:
    made.refresh()
    state = made.state()
    lines = dict(trust_lines(state))
    assert [*lines] == ["Depends on", "Cut", "Sources", "Learned", "Control", "Checks"]
    assert lines["Control"] == control_result(state).sentence
    chosen, scores = state.store.read("selected_subset", None), state.store.read("combined_scores", None)
    last, first = (scores.sort("rank")["score"][place] for place in (5, 6))
    assert min(chosen["score"]) == last > first
    kinds = chosen["dependency"].to_list()
    for kind in ("closed_book", "near", "unpredictable"):
        if kind in kinds:
            assert f"{kinds.count(kind)} of 6 chosen samples" in lines["Checks"]
            assert f"`selection.drop: [{kind}]`" in lines["Checks"]
    page = state.store.files.read("report.html").decode()
    assert 'id="trust"' in page and "AUROC" in page and "cannot say" not in page
    print_trust(made.config)
    assert "AUROC" in capfd.readouterr().out
