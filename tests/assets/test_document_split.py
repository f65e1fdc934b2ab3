"""What is reserved is in no selection, by whatever rule and method, and is the same for all of them."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pytest

from gateau_dagster.assets.comparison import compared
from gateau_dagster.config import Config, SelectionConfig
from gateau_dagster.data.document_split import TEXTS, Documents, split
from gateau_dagster.data.sample import text_digest
from gateau_dagster.errors import GateauError
from gateau_dagster.explanation.one_sample import one_sample
from gateau_dagster.pipeline.checks import checked_plan, checks_of
from gateau_dagster.pipeline.choice import chosen_samples
from gateau_dagster.pipeline.data_checks import too_few
from gateau_dagster.pipeline.losses import losses
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.recipes import Recipe
from gateau_dagster.pipeline.selection_reads import comparison_reads, selection_reads
from gateau_dagster.pipeline.state import State
from gateau_dagster.progress import silent
from gateau_dagster.storage import Stamp
from tests.assets.harness import Pipeline, pipeline_on, value_of
from tests.data.test_near_duplicates import edited, words
from tests.kit.project import change_config, make_project, write_samples

DOCUMENTS, QUESTIONS = 30, 3
ORDER = ["method_scores/length", "selected_subset"]


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


def opened(folder: Path, **sections: Any) -> State:
    """A store with the tables that a choice reads, made up; what is reserved has the highest scores."""
    content = {
        "storage": {"root": str(folder)},
        "long_sft": {"path": "long.jsonl", "shards": 1},
        "models": {"long": {"path": "a/long"}, "enc": {"path": "a/enc", "task": "embedding"}},
        "training": {"model": "long"},
        **sections,
        "selection": {"method": "length", "compare": ["random"], **sections.get("selection", {})},
    }
    state = state_of(config=Config.model_validate(content))
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
    state = opened(tmp_path, selection=rule)
    reserved = state.read("document_split").filter("reserved")["sample_id"].to_list()
    chosen = chosen_samples(state, Recipe(state.config)).chosen["sample_id"].to_list()
    assert chosen and len(documents_of(reserved)) * QUESTIONS == len(reserved) > 0
    assert not documents_of(chosen) & documents_of(reserved)
    free = DOCUMENTS * QUESTIONS - len(reserved)
    if "fraction" in rule and "encoder" not in rule:
        assert len(chosen) == round(rule["fraction"] * free), "of what is not reserved"


@pytest.mark.parametrize("evaluation", [{"enabled": False}, {"benchmarks": []}, {"benchmarks": ["needle"]}])
def test_all_can_be_chosen_where_nothing_is_held_out(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    state = opened(tmp_path, selection={"fraction": 1}, evaluation=evaluation)
    assert "document_split" not in state.pipeline.by_key
    assert chosen_samples(state, Recipe(state.config)).chosen.height == DOCUMENTS * QUESTIONS


def test_methods_are_compared_on_what_they_can_choose(tmp_path: Path) -> None:
    state = opened(tmp_path, selection={"fraction": 0.5})
    chosen = chosen_samples(state, Recipe(state.config)).chosen
    state.store.write(chosen, "selected_subset", None, Stamp(fingerprint="f"))
    reserved = int(state.read("document_split")["reserved"].sum())
    found = compared(state, silent)
    assert found.samples == DOCUMENTS * QUESTIONS - reserved
    assert {facts.scored for facts in found.methods} == {found.samples}
    assert found.chosen == found.pairs[0].overlaps[-1].wanted == chosen.height


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """Choose by methods that load no model, in a project that would train and evaluate."""
    folder = tmp_path_factory.mktemp("split")
    file = make_project(folder, training=True, selection={"method": "length", "fraction": 0.5})
    write_samples(folder / "long.jsonl", records())
    with pipeline_on(file) as pipeline:
        yield pipeline


def selected(project: Pipeline, **sections: Any) -> tuple[set[str], list[str], list[str]]:
    """What ran after a change of the configuration, and the ids that are chosen and reserved then."""
    made, store = project.made("selected_subset", **sections), project.state().store
    ran = {asset for (asset, _), event in made.items() if value_of(event, "up_to_date") is None}
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
    project.refresh(until="document_split")
    rule = {"rule": "per_source", "fraction": None, "count": 44, "shares": {"a": 1}}
    change_config(project.file, selection=rule, evaluation={"heldout": {"share": 0.6}})
    split = project.state().plan().of("document_split")  # the data themselves have 45 samples of this source
    assert split is not None and split.reasons == {None: "changed: reserved share 0.1 → 0.6"}
    with pytest.raises(GateauError, match="source 'a' has"):
        project.refresh(until="selected_subset")


@pytest.mark.parametrize("evaluation", [{}, {"enabled": False}], ids=["with held-out", "alone"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_document_is_limited_whether_samples_are_reserved_or_not(
    tmp_path: Path, rule: dict[str, Any], evaluation: dict[str, Any]
) -> None:
    if rule.get("rule") == "per_source":
        rule = rule | {"short_source": "share"}
    state = opened(tmp_path, selection=rule | {"per_document": 1}, evaluation=evaluation)
    chosen = chosen_samples(state, Recipe(state.config)).chosen["sample_id"].to_list()
    assert chosen and len(documents_of(chosen)) == len(chosen)


@pytest.mark.parametrize("similarity", [None, 0.8])
def test_the_same_similarity_counts_whether_that_benchmark_runs_or_not(
    tmp_path: Path, similarity: float | None
) -> None:
    options = {} if similarity is None else {"heldout": {"similarity": similarity}}
    wanted = {"similarity of near-duplicates": similarity or 0.5}
    for evaluation in ({"enabled": False}, {"benchmarks": ["needle"]}):
        state = opened(tmp_path, selection={"per_document": 1}, evaluation={**evaluation, **options})
        assert state.asset("document_split").settings == wanted
    state = opened(tmp_path, selection={"per_document": 1}, evaluation=options)
    assert state.asset("document_split").settings == {"reserved share": 0.1, **wanted}


def test_what_the_limit_leaves_out_is_in_the_store_and_said(project: Pipeline) -> None:
    limit = {"method": "length", "rule": "top", "count": 20, "fraction": None, "shares": None, "per_document": 2}
    _, chosen, reserved = selected(project, selection=limit, evaluation={"heldout": {"share": 0.1}})
    state = project.state()
    documents = dict(state.read("document_split", ["sample_id", "document"]).iter_rows())
    assert [*losses(state, {"selected_subset"})] == []
    assert len(chosen) == 20 and max(Counter(documents[one] for one in chosen).values()) == 2
    rejected = state.read_rejected("selected_subset")
    assert rejected.height == (DOCUMENTS * QUESTIONS - len(reserved)) // QUESTIONS
    shown = one_sample(state, rejected["sample_id"][0])
    assert ("selected_subset", rejected["reason"][0]) in shown.rejected
    assert value_of(project.latest("selected_subset"), "left_out_by_document") == rejected.height
    groups = project.latest("document_split").metadata
    assert (groups["groups"].value, groups["largest_group"].value) == (DOCUMENTS, QUESTIONS)
    assert groups["share_of_samples_in_groups"].value == 1.0
    assert "in documents of 3-4" in unquote(str(groups["samples_by_size_of_document"].value))

    ran, chosen, _ = selected(project, selection={"per_document": None})
    assert ran == {"selected_subset"} and len(chosen) == 20
    assert project.state().read_rejected("selected_subset").is_empty(), "nothing of the limit stays"


def test_a_limit_that_comes_when_the_documents_are_known_is_looked_at_before_anything_runs(project: Pipeline) -> None:
    rule = {"method": "length", "rule": "top", "count": 20, "fraction": None, "shares": None, "per_document": None}
    selected(project, selection=rule, evaluation={"heldout": {"share": 0.1}})
    change_config(project.file, selection={"count": 60, "per_document": 1})
    planned = project.state()
    assert [work.asset for work in planned.plan_until("selected_subset").work] == ["selected_subset"]
    (said,) = [warning for warning in checks_of(planned).warnings if "per_document" in warning]
    assert said.startswith("selection.per_document: 1 leaves ") and said.endswith("fewer than the 60 to choose")
    change_config(project.file, selection={"rule": "per_source", "shares": {"a": 1}, "count": 30})
    for target in (None, "selected_subset"):
        with pytest.raises(GateauError, match=r"source .a. has \d+ samples that can be .*per_document: 1 leaves"):
            checked_plan(project.state(), target)


def test_the_limit_alone_finds_the_documents_and_says_when_they_are_too_few(tmp_path: Path) -> None:
    file = make_project(tmp_path, selection={"method": "length", "fraction": 0.5, "per_document": 1}, shards=2)
    write_samples(tmp_path / "long.jsonl", records()[: 10 * QUESTIONS])
    with pipeline_on(file) as project:
        planned = project.state().plan_until("selected_subset")
        assert [work.asset for work in planned.work] == ["raw_long_sft", "document_split", *ORDER]
        _, chosen, reserved = selected(project)
        assert len(chosen) == len(documents_of(chosen)) == 10 and not reserved
        logs = [project.instance.all_logs(run.run_id) for run in project.runs()]
        said = {entry.user_message for log in logs for entry in log}
        assert "selection.per_document: 1 leaves 10 samples, fewer than the 15 to choose" in said
        assert "selection.per_document leaves too few samples: 5 fewer are chosen than configured" in said
        assert value_of(project.latest("selected_subset"), "could_not_be_filled") == 5
        [loss] = losses(project.state(), {"selected_subset"})
        assert loss.notable and loss.sentence.startswith("10 of 15 samples are chosen: selection.per_docum")


def test_what_the_limit_leaves_may_be_too_little_for_the_rule() -> None:
    documents = pl.DataFrame({"document": [*"aaaabc"], "source": ["law"] * 4 + ["web"] * 2, "digest": ["t", *"tuvwx"]})
    assert too_few(documents, SelectionConfig(count=3, per_document=1)) == ""
    assert too_few(documents, SelectionConfig(count=6)) == too_few(documents, SelectionConfig(fraction=1)) == ""
    kept = SelectionConfig(fraction=1, per_document=4, duplicates="keep")  # document a holds one text twice
    assert too_few(documents, kept) == ""
    leaves = "selection.per_document: {} leaves {} samples, fewer than the {} to choose"
    assert too_few(documents, SelectionConfig(count=4, per_document=1)) == leaves.format(1, 3, 4)
    for most in (3, 4):
        rule = SelectionConfig(fraction=1, per_document=most)
        assert too_few(documents, rule) == leaves.format(most, 5, 6)
    assert too_few(documents, SelectionConfig(rule="token_budget", budget=9, per_document=1)) == ""
    by_source = {"rule": "per_source", "count": 3, "per_document": 1}
    with pytest.raises(GateauError, match=r"source 'law' has 1 samples that can be chosen \(of 3\), but its share"):
        too_few(documents, SelectionConfig.model_validate(by_source))
    assert too_few(documents, SelectionConfig.model_validate({**by_source, "short_source": "share"})) == ""


SYSTEM = words(5000, 300)


def shared_instructions(number: int) -> list[dict[str, Any]]:
    """A trace, a record with a system turn and one with a system text, about documents that share no words."""
    user, answer, last = (words(100 * number + turn, 60) for turn in range(3))
    tools = [{"name": "read", "description": words(6000, 200)}]
    system, asked, said = (
        {"role": role, "content": text} for role, text in (("system", SYSTEM), ("user", user), ("assistant", answer))
    )
    trace = [system, asked, said, {"role": "user", "content": "Go on."}, {"role": "assistant", "content": last}]
    text = f"{words(100 * number + 3, 60)}\n\nWhat is it?"
    exchange = [system, {"role": "user", "content": text}, said]
    parts = {"context": words(100 * number + 4, 60), "instruction": "What is it?", "response": last}
    records = [{"messages": trace, "tools": tools}, {"messages": exchange}, {"system": SYSTEM, **parts}]
    return [{"id": f"{kind}{number}", **record} for kind, record in enumerate(records)]


def test_samples_that_share_their_instructions_are_as_many_documents(tmp_path: Path) -> None:
    """A split that was made of whole contexts is out of date only where samples have instructions."""
    file = make_project(tmp_path, selection={"method": "length", "fraction": 1.0, "per_document": 1}, shards=2)
    rows = [row for number in range(4) for row in shared_instructions(number)]
    write_samples(tmp_path / "long.jsonl", rows)
    with pipeline_on(file) as project:
        _, chosen, _ = selected(project)
        assert len(chosen) == len(rows)
        index = project.state().index
        assert {*index.instructions} == {row["id"] for row in rows}
        texts = dict(project.state().read("raw_long_sft", ["sample_id", "context"]).iter_rows())
        for sample_id, size in index.instructions.items():
            context = texts[sample_id]
            assert SYSTEM not in context[size:] and context[:size].endswith(SYSTEM), "all of them and nothing else"
        assert project.state().resolved("document_split").settings["instructions"]
        write_samples(tmp_path / "long.jsonl", records()[::QUESTIONS])
        assert "instructions" not in project.state().resolved("document_split").settings


def test_samples_of_one_conversation_are_one_document(tmp_path: Path) -> None:
    def trace(number: int) -> dict[str, Any]:
        # The turns of a trace share no words, so that only the trace makes them one document.
        texts = [words(100 * number + turn, 60) for turn in range(4)]
        roles = ["user", "assistant", "user", "assistant"]
        turns = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        return {"id": f"t{number}", "messages": turns}

    file = make_project(tmp_path, selection={"method": "length", "fraction": 1.0, "per_document": 1}, shards=3)
    plain = [{**row, "id": f"p{number}"} for number, row in enumerate(records()[:: 3 * QUESTIONS])]
    write_samples(tmp_path / "long.jsonl", [*map(trace, range(8)), *plain])
    with pipeline_on(file) as project:
        _, chosen, _ = selected(project, long_sft={"turns": "each"})
        store = project.state().store
        documents = store.read("document_split")
        assert len(chosen) == documents["document"].n_unique() == 8 + len(plain)
        ids = documents.group_by("document").agg("sample_id")["sample_id"].to_list()
        assert {tuple(sorted(each)) for each in ids if len(each) > 1} == {(f"t{n}#1", f"t{n}#2") for n in range(8)}
        subset = store.read("selected_subset")
        assert subset.filter(pl.col("conversation").is_null())["sample_id"].sort().to_list() == [
            row["id"] for row in plain
        ]
