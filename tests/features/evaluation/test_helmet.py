"""HELMET's prompts from its rows, in the words of its code, and what answers are worth."""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.config.base import SectionError
from gateau_dagster.features.evaluation.benchmarks.helmet import balanced, drawn_by_key, examples, seed_of
from gateau_dagster.features.evaluation.registry import scored_benchmarks
from tests.features.evaluation.builders import asked, project, values, write_jsonl
from tests.features.evaluation.suites import HELMET_TASKS, folder_of
from tests.kit.error_codes import refused

from . import official

# HELMET's draws: equal shares, different examples, the same each time.


LABELS = [place % 4 for place in range(40)] + [4, 4]


def test_rounds_hold_every_label_once() -> None:
    for seed in range(20):
        drawn = balanced(LABELS, 23, seed)
        rounds = [[LABELS[place] for place in drawn[start : start + 5]] for start in range(0, 20, 5)]
        assert len(drawn) == 23 and all(sorted(each) == [0, 1, 2, 3, 4] for each in rounds)
        taken = Counter(place for place in drawn if LABELS[place] != 4)
        assert {*taken.values()} == {1}  # the label with two rows alone has some of them again
        assert drawn == balanced(LABELS, 23, seed)
    assert len({tuple(balanced(LABELS, 23, seed)) for seed in range(20)}) == 20


def test_all_rows_of_a_question_are_drawn_or_none() -> None:
    rows = [{"id": place // 2, "row": place} for place in range(20)]
    drawn = drawn_by_key(rows, "id", 3)
    assert sorted(Counter(row["id"] for row in drawn).values()) == [2, 2, 2]
    assert [row["row"] for row in drawn] == sorted(row["row"] for row in drawn)
    assert drawn_by_key(rows, "id", 99) == rows


def test_examples_are_of_different_questions_and_each_question_s_own() -> None:
    rows = [{"id": place % 6, "row": place} for place in range(30)]
    found = {own: examples(rows, "id", own, 4) for own in range(8)}
    assert all(len({row["id"] for row in each}) == 4 for each in found.values())
    assert len({str(each) for each in found.values()}) > 1
    assert len(examples(rows, "id", 0, 9)) == 6


def test_a_seed_is_the_text_s() -> None:
    assert seed_of("a") == int("ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb", 16) % 2**31
    assert seed_of("a", 42) == (seed_of("a") + 42) % 2**31


folder = folder_of("helmet")


def _options(**options: Any) -> dict[str, Any]:
    return {"official": ".", "lengths": [8192], "tasks": HELMET_TASKS, **options}


def test_prompts_are_rows_and_examples_in_the_published_words(folder: Path) -> None:
    found = {each.question_id: each for each in asked(project(folder, "helmet", **_options()))}
    recalled = found["json_kv/8192/k/1"]
    assert recalled.turns == ('{"k": "v"}\nFind.\nKey: a\nValue: b\n\nKey: c\nValue: d\n\nKey: k\nValue:',)
    assert (recalled.generation.max_new_tokens, recalled.generation.stop, recalled.chat) == (100, (), False)
    read = found["kilt_nq/8192/1/2"]
    demos = [f"Doc T0: u\n\nDoc T1: w\nQ d{n}\nA y\n\n" for n in (7, 8)]
    assert read.turns[0] in {f"Read.\n{a}{b}Doc T0: x\nQ q1\nA:" for a, b in (demos, demos[::-1])}
    assert read.generation.stop == ("\n",) and read.references == ("answer 1",)
    assert {name for name in found if "kilt_nq" in name} == {f"kilt_nq/8192/{name}" for name in ("1/1", "1/2", "2/1")}
    assert {name.split("/")[2] for name in found if "popqa" in name} == {"0.2", "1", "1.5"}
    ranked = found["msmarco_rerank_psg/8192/r0/1"]
    example = "[ID: 0] T0: low\n\n[ID: 1] T1: high\n\nQuery: best {}\nRanking: 1 > 0\n\n"
    ends = "[ID: 0] T0: low\n\n[ID: 1] T1: high\nQ best 0\nRanking:"
    both = {f"Rank.\n{example.format(a)}{example.format(b)}{ends}" for a, b in ((1, 2), (2, 1))}
    assert ranked.turns[0] in both and ranked.facts["relevance"] == {"0": 0, "1": 1}


def test_through_a_chat_template_the_answer_is_begun(folder: Path) -> None:
    (found,) = asked(project(folder, "helmet", **_options(tasks=["json_kv"], chat=True)))
    assert found.turns[0].endswith("Key: k") and (found.prefill, found.chat) == ("Value:", True)


def test_answers_are_found_after_their_lead_and_rankings_weighed(folder: Path) -> None:
    config = project(folder, "helmet", **_options(questions=2))
    found = asked(config)
    said = {each.question_id: "It is the Answer: 1, V" for each in found}
    said |= {each.question_id: " ID0 > ID1" for each in found if each.facts["relevance"]}
    worth = values(config, found, said)
    assert worth["json_kv/8192/k/1"] == worth["kilt_nq/8192/1/1"] == 100 and worth["kilt_nq/8192/2/1"] == 0
    ranked = [value for name, value in worth.items() if "rerank" in name]
    assert len(ranked) == 2 and ranked[0] == pytest.approx(63.09, abs=0.01)


def _labels(context: str) -> dict[str, set[str]]:
    """What the examples say of each label that stands in their texts."""
    found: dict[str, set[str]] = {}
    for of, number in re.findall(r"of (\d)\nis: (\d+)", context):
        found.setdefault(of, set()).add(number)
    return found


def test_labels_are_numbers_that_the_examples_explain(folder: Path) -> None:
    found = asked(project(folder, "helmet", **_options(tasks=["icl_trec_coarse"], data_sets="sets")))
    assert len(found) == 12
    for each in found:
        opening, context, question = each.turns[0].partition("\n")[0], *each.turns[0].rsplit("\n\n", maxsplit=1)
        assert opening == 'Only say "is: {label}".' and question.startswith("test ") and question.endswith("\nis:")
        labels = _labels(context)
        assert [len(numbers) for numbers in labels.values()] == [1, 1, 1] and context.count("is: ") == 9
        assert {*each.references} == labels[question.removesuffix("\nis:")[-1]]
        assert "train" in context and each.generation.stop == ("\n",)
    assert len({str(_labels(each.turns[0])) for each in found}) > 1


def test_fewer_are_asked_with_labels_in_equal_shares_and_a_tenth_where_there_is_one_split(folder: Path) -> None:
    options = _options(tasks=["icl_trec_coarse", "icl_nlu"], data_sets="sets", questions=6)
    found = asked(project(folder, "helmet", **options))
    of = [each.turns[0].split()[-2] for each in found if each.group == "icl_trec_coarse/8192"]
    assert sorted(of) == ["0", "0", "1", "1", "2", "2"]
    split = [each for each in found if each.group == "icl_nlu/8192"]
    texts = {each.turns[0].rsplit("\n\n", maxsplit=1)[1].partition("\n")[0] for each in split}
    assert len(split) == len(texts) == 4 and not any(text in each.turns[0][:-80] for text in texts for each in split)


def test_a_label_is_right_alone_or_after_its_lead(folder: Path) -> None:
    config = project(folder, "helmet", **_options(tasks=["icl_nlu"], data_sets="sets"))
    found = asked(config)
    right = found[0].references[0]
    said = [f" {right}", f"So it IS: {right}.\nis: 99", f"{right}1", f"one of {right}"]
    worth = values(config, found, dict(zip([each.question_id for each in found], said, strict=True)))
    assert [worth[each.question_id] for each in found][:1] == [100] and 0 in worth.values()
    assert worth[found[1].question_id] == 100 * (found[1].references[0] == right)


@pytest.mark.parametrize(
    ("options", "code", "place"),
    [
        ({"tasks": ["icl_nlu"]}, "evaluation.benchmark_files", r"helmet\.data_sets"),
        ({"official": None}, "evaluation.benchmark_files", r"helmet\.official"),
        ({"data": "nowhere"}, "data.missing", r"helmet\.data"),
        ({"lengths": [8192, 5]}, "evaluation.length", r"helmet\.lengths"),
        ({"lengths": [8192, 131_072]}, "evaluation.length", r"helmet\.lengths"),
    ],
)
def test_what_is_missing_is_named(options: dict[str, Any], code: str, place: str, folder: Path) -> None:
    with refused(code, place):
        scored_benchmarks(project(folder, "helmet", **_options(**options)))


def test_other_tasks_and_other_rows_are_named(folder: Path) -> None:
    described = next((folder / "configs").iterdir())
    good = described.read_text()
    for content in ("{", "datasets: kilt_nq"):
        described.write_text(content)
        with refused("evaluation.benchmark_data", rf"helmet\.official: .*{described.name}"):
            scored_benchmarks(project(folder, "helmet", **_options()))
    described.write_text(good)
    with pytest.raises(SectionError, match="json_kv, kilt_nq"):
        scored_benchmarks(project(folder, "helmet", **_options(tasks=["icl_other"])))
    write_jsonl(folder / "data" / "nq_demos.jsonl", [{"id": 1, "question": "d", "answers": ["y"], "ctxs": []}])
    with refused("evaluation.benchmark_data", r"nq_demos\.jsonl.*2"):
        asked(project(folder, "helmet", **_options(tasks=["kilt_nq"])))


def test_rows_without_labels_and_missing_splits_are_named(folder: Path) -> None:
    config = project(folder, "helmet", **_options(tasks=["icl_trec_coarse"], data_sets="sets"))
    test = folder / "sets" / "CogComp" / "trec" / "default" / "test" / "0000.parquet"
    pl.DataFrame([{"text": "a", "coarse_label": 6}]).write_parquet(test)
    with refused("evaluation.benchmark_data", r"data_sets.*0000\.parquet:1.*icl_trec_coarse"):
        asked(config)
    test.unlink()
    with refused("evaluation.benchmark_data", "data_sets.*sets/CogComp/trec"):
        asked(config)


@pytest.fixture
def published(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """HELMET's own code, whose words stand in the folder, too."""
    pytest.importorskip("datasets", reason="HELMET's code reads its rows with datasets")
    stubs: dict[str, Any] = {"pytrec_eval": {}, "rouge_score": {"rouge_scorer": None}}
    utils = official.loaded(official.code("HELMET/utils.py"), monkeypatch, **stubs)
    monkeypatch.setitem(sys.modules, "utils", utils)
    (folder / "data.py").write_bytes(official.code("HELMET/data.py").read_bytes())
    return official.loaded(official.code("HELMET/data.py"), monkeypatch)


@pytest.mark.long
def test_prompts_are_the_published_code_s(folder: Path, published: Any) -> None:
    """On the same rows, with its own draw of questions and examples."""
    data = folder / "data"
    rank = str(data / "rank.jsonl")
    published.random.seed(42)
    theirs = {
        "json_kv": published.load_json_kv(str(data / "kv.jsonl"), 2, 1),
        "kilt_nq": published.load_qa("kilt_nq", str(data / "nq.jsonl"), str(data / "nq_demos.jsonl"), 1, shots=2),
        "msmarco_rerank_psg": published.load_msmarco_rerank(rank, rank, shots=2),
    }
    for task, loaded in theirs.items():
        wanted = [loaded["prompt_template"].format(**row) for row in loaded["data"]]
        most = 3 if task == "msmarco_rerank_psg" else 1
        found = [each.turns[0] for each in asked(project(folder, "helmet", **_options(tasks=[task], questions=most)))]
        assert found == wanted


@pytest.mark.long
@pytest.mark.parametrize("questions", [5, 100])
@pytest.mark.parametrize("task", ["icl_trec_coarse", "icl_nlu"])
def test_labels_are_asked_as_by_the_published_code(
    task: str, questions: int, folder: Path, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same questions in the same order, with the same examples and numbers."""
    library = published.datasets

    def loaded(name: str, **_: Any) -> dict[str, Any]:
        files = {file: file.parent.name for file in (folder / "sets" / name).rglob("*.parquet")}
        found = {}
        for file, split in files.items():
            rows = library.Dataset.from_polars(pl.read_parquet(file))
            for field in {"coarse_label", "fine_label", "label"} & {*rows.column_names}:
                rows = rows.cast_column(field, library.ClassLabel(num_classes=3))
            found["test" if split == "test" else "train"] = rows
        return found

    mapped = library.Dataset.map
    monkeypatch.setattr(
        library.Dataset, "map", lambda *given, **options: mapped(*given, **{**options, "num_proc": None})
    )
    monkeypatch.setattr(published, "load_dataset", loaded)
    shots = {"icl_trec_coarse": 8, "icl_nlu": 6}[task]
    theirs = published.load_icl(f"{task}_{shots}shot_balance", max_test_sample=questions)
    options = _options(tasks=[task], data_sets="sets", questions=questions)
    found = asked(project(folder, "helmet", **options))
    assert [each.turns[0] for each in found] == [theirs["prompt_template"].format(**row) for row in theirs["data"]]
    assert [each.references for each in found] == [(row["answer"],) for row in theirs["data"]]
