"""What is reserved is in no selection, by whatever rule and method, and is the same for all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from assets.comparison import compared
from assets.selection import chosen_samples, ranking_scores
from gateau_dagster.config import Config
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.document_split import TEXTS, Documents, split
from gateau_dagster.pipeline.selection_reads import comparison_reads, selection_reads
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import silent
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, key_of, pipeline_on, value_of
from tests.data.test_near_duplicates import edited
from tests.data.test_shingles import words
from tests.project import change_config, make_project, write_samples

DOCUMENTS, QUESTIONS = 30, 3


def records() -> list[dict[str, str]]:
    """Three questions about each of 30 documents, one of them about a copy with a changed word."""
    rows = []
    for document in range(DOCUMENTS):
        text = words(document, 60)
        for number, context in enumerate((text, text, edited(text, 1, document))):
            answer = words(1000 + document + 100 * number, 3 + document % 5)
            rows.append({"id": f"d{document:02d}q{number}", "source": "ab"[document % 2], "context": context,
                         "instruction": f"question {number}", "response": answer})  # fmt: skip
    return rows


def documents_of(ids: list[str]) -> set[str]:
    return {name.split("q")[0] for name in ids}


RULES: list[dict[str, Any]] = [
    {"fraction": 0.1},
    {"fraction": 0.5},
    {"fraction": 1},
    {"count": 40},
    {"rule": "token_budget", "budget": 2000},
    {"rule": "per_source", "fraction": 0.5},
    {"rule": "per_source_tokens", "budget": 3000},
    {"rule": "diverse", "fraction": 0.3, "encoder": "enc", "clusters": 4, "per_cluster": 2},
]


def state_of(folder: Path, **sections: Any) -> State:
    """A store with the tables that a choice reads, made up; what is reserved has the highest scores."""
    content = {
        "storage": {"root": str(folder)},
        "long_sft": {"path": "long.jsonl", "shards": 1},
        "models": {"long": {"path": "a/long"}, "enc": {"path": "a/enc", "task": "embedding"}},
        "training": {"model": "long"},
        **sections,
        "selection": {"method": "length", "compare": ["random"], **sections.get("selection", {})},
    }
    state = State(config=Config.model_validate(content))
    raw = pl.DataFrame(records()).rename({"id": "sample_id"})
    digests = [text_digest(row) for row in raw.select(TEXTS[1:]).iter_rows()]
    raw = raw.with_columns(digest=pl.Series(digests))
    documents = Documents()
    documents.add(raw)
    reserved = split(documents, share=0.2, least=0.5)
    scores = raw.select("sample_id").join(reserved, on="sample_id", maintain_order="left")
    scores = scores.with_row_index().select("sample_id", score=pl.col("index") + 1000.0 * pl.col("reserved"))
    tokens = raw.select("sample_id", context_tokens=60, response_tokens=9, perplexity=1.5)
    embedding = raw.select("sample_id", embedding=pl.concat_list(pl.int_range(pl.len()).cast(pl.Float32), pl.lit(1.0)))
    known = {"raw_long_sft": raw, "document_split": reserved, "perplexity/long": tokens, "embedding/enc": embedding}
    for asset in {*selection_reads(state.config), *comparison_reads(state.config)} - {"selected_subset"}:
        for part in state.pipeline.partitions(asset):
            state.store.write(known.get(asset, scores), asset, part, Stamp(fingerprint="f"))
    return state


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_no_rule_takes_a_question_about_a_reserved_document(tmp_path: Path, rule: dict[str, Any]) -> None:
    state = state_of(tmp_path, selection=rule)
    reserved = state.read("document_split").filter("reserved")["sample_id"].to_list()
    chosen = chosen_samples(state, ranking_scores(state, state.config), silent)["sample_id"].to_list()
    assert chosen and len(documents_of(reserved)) * QUESTIONS == len(reserved) > 0
    assert not documents_of(chosen) & documents_of(reserved)
    free = DOCUMENTS * QUESTIONS - len(reserved)
    if "fraction" in rule and "encoder" not in rule:
        assert len(chosen) == round(rule["fraction"] * free), "of what is not reserved"


@pytest.mark.parametrize("evaluation", [{"enabled": False}, {"benchmarks": []}, {"benchmarks": ["needle"]}])
def test_all_can_be_chosen_where_nothing_is_held_out(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    state = state_of(tmp_path, selection={"fraction": 1}, evaluation=evaluation)
    assert "document_split" not in state.pipeline.by_key
    assert chosen_samples(state, ranking_scores(state, state.config), silent).height == DOCUMENTS * QUESTIONS


def test_methods_are_compared_on_what_they_can_choose(tmp_path: Path) -> None:
    state = state_of(tmp_path, selection={"fraction": 0.5})
    chosen = chosen_samples(state, ranking_scores(state, state.config), silent)
    state.store.write(chosen, "selected_subset", None, Stamp(fingerprint="f"))
    reserved = int(state.read("document_split")["reserved"].sum())
    found = compared(state, silent)
    assert found.samples == DOCUMENTS * QUESTIONS - reserved
    assert {facts.scored for facts in found.methods} == {found.samples}
    assert found.chosen == found.pairs[0].overlaps[-1].wanted == chosen.height


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """By methods that load no model; trained and evaluated it would be."""
    folder = tmp_path_factory.mktemp("split")
    file = make_project(folder, training=True, selection={"method": "length", "fraction": 0.5})
    write_samples(folder / "long.jsonl", records())
    with pipeline_on(file) as pipeline:
        yield pipeline


def selected(project: Pipeline, **sections: Any) -> tuple[set[str], list[str], list[str]]:
    """What ran after a change of the configuration, and the ids that are chosen and reserved then."""
    change_config(project.file, **sections)
    runs = project.refresh(until="selected_subset").run_ids
    events = [event for run in runs for event in project.materialised(run)]
    store = project.state().store
    ran = {key_of(event)[0] for event in events if value_of(event, "up_to_date") is None}
    reserved = store.read("document_split").filter("reserved")["sample_id"].to_list()
    return ran, store.read("selected_subset")["sample_id"].to_list(), reserved


def test_every_method_is_tested_on_the_same_documents(project: Pipeline) -> None:
    ran, by_length, reserved = selected(project)
    assert {"raw_long_sft", "document_split", "selected_subset"} < ran
    ran, by_random, the_same = selected(project, selection={"method": "random", "fraction": 1})
    assert ran == {"method_scores/random", "selected_subset"} and the_same == reserved != []
    for chosen in (by_length, by_random):
        assert not documents_of(chosen) & documents_of(reserved)
    assert len(by_random) == 2 * len(by_length) == DOCUMENTS * QUESTIONS - len(reserved)


def test_what_is_left_may_be_too_little_for_the_rule(project: Pipeline) -> None:
    rule = {"rule": "per_source", "fraction": None, "count": 44, "shares": {"a": 1}}
    change_config(project.file, selection=rule, evaluation={"heldout": {"share": 0.6}})
    split = project.state().plan().of("document_split")  # the data themselves have 45 samples of this source
    assert split is not None and split.reasons == {None: "changed: reserved share 0.1 → 0.6"}
    with pytest.raises(GateauError, match="source 'a' has"):
        project.refresh(until="selected_subset")
