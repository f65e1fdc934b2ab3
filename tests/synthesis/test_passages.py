"""Passages hold whole sentences, share a term, lie far apart, and depend on their document alone."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config.synthesis import SynthesisConfig
from gateau_dagster.demo.generator import demo_document
from gateau_dagster.evaluation.benchmark import Generation, Question
from gateau_dagster.evaluation.contamination import AskedTexts
from gateau_dagster.synthesis.passages import (
    PASSAGES_OF,
    SourceDocument,
    candidates,
    document_index,
    quota,
    split_passages,
    terms,
    usable_passages,
)
from tests.error_codes import refused
from tests.tiny_models import text

GENERATOR = {"base_url": "http://x/v1", "model": "m", "key": None}


def options(**keys: Any) -> SynthesisConfig:
    given = {"documents": "*.txt", "count": 12, "shards": 1, "passage_words": 24, "generator": GENERATOR}
    return SynthesisConfig.model_validate({**given, **keys})


def documents(count: int) -> list[SourceDocument]:
    return [SourceDocument(name=f"{number:032x}", text=demo_document(number)) for number in range(1, count + 1)]


@pytest.mark.parametrize("words", [8, 40, 1000])
@pytest.mark.parametrize("whole", [text(1, 600), demo_document(1), "一天。" * 90, "word " * 500, "a\n\nb.\n", ""])
def test_passages_hold_every_word_once_in_order(whole: str, words: int) -> None:
    found = split_passages(whole, words)
    assert all(whole[each.start : each.end] == each.text for each in found)
    assert all(one.end <= two.start for one, two in itertools.pairwise(found))
    assert "".join("".join(each.text for each in found).split()) == "".join(whole.split())
    assert all(len(each.text.split()) <= 4 * words for each in found)


def test_passages_of_a_question_share_a_term_and_lie_far_apart() -> None:
    given = documents(3)
    rows = candidates(iter(given), options(count=60, kinds={"two_passages": 0.5, "count": 0.5}), 60)
    texts = {each.name: each.text for each in given}
    assert len(rows) == 60 and len({row["sample_id"] for row in rows}) == 60
    for row in rows:
        found, whole = row["passages"], texts[row["document"]]
        assert len(found) == PASSAGES_OF[row["kind"]]
        assert all(whole[each["start"] : each["end"]] == each["text"] for each in found)
        assert all(row["term"] in terms(each["text"]) for each in found)
        starts = [each["start"] for each in found]
        assert all(b - a >= len(whole) / (2 * len(found)) for a, b in itertools.pairwise(starts))


def test_the_same_seed_gives_the_same_candidates_and_another_document_changes_none() -> None:
    given, chosen = documents(4), options(count=16)
    rows = candidates(iter(given), chosen, 16)
    assert rows == candidates(iter(given[::-1]), chosen, 16)
    assert rows != candidates(iter(given), options(count=16, seed=1), 16)
    more = candidates(iter([*given, *documents(5)[4:]]), chosen, 20)
    assert sum(row in more for row in rows) >= 12


def test_near_duplicates_and_questions_of_benchmarks_are_left_out() -> None:
    whole = demo_document(1)
    passages = split_passages(whole, 24)
    copied = f"{whole} {passages[0].text}"
    assert len(usable_passages(copied, 24)) == len(usable_passages(whole, 24))
    turn = " ".join(passages[3].text.split()[:20])
    question = Question(question_id="q", group="all", turns=(turn,), generation=Generation(max_new_tokens=8))
    kept = usable_passages(whole, 24, [AskedTexts.of([question])])
    assert passages[3] in usable_passages(whole, 24) and passages[3] not in kept
    assert len(kept) >= len(passages) - 2


def test_the_index_reads_texts_and_records_and_is_kept(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("A plain text.")
    lines = [{"text": "A record."}, {"text": ""}, {"text": "A plain text."}]
    (tmp_path / "two.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    chosen = options(documents=["*.txt", "*.jsonl"], shards=3)
    index = document_index(chosen, tmp_path, tmp_path / "cache")
    found = {each.text: number for number in range(3) for each in index.documents(number)}
    assert {*found} == {"A plain text.", "A record."}, "equal texts are one document"
    assert [each.sample_id for each in index.rejected] == ["two.jsonl:2"]
    assert document_index(chosen, tmp_path, tmp_path / "cache").table.equals(index.table)
    digests = [index.digest(number) for number in range(3)]
    (tmp_path / "three.txt").write_text("Another one.")
    again = document_index(chosen, tmp_path, tmp_path / "cache")
    changed = [number for number in range(3) if again.digest(number) != digests[number]]
    assert len(changed) == 1, "a new document changes its shard alone"
    (tmp_path / "two.jsonl").write_text("{}\n" * 3)
    with refused("data.changed"):
        for number in range(3):
            list(index.documents(number))


def test_a_path_without_documents_is_named(tmp_path: Path) -> None:
    with refused("data.missing", "synthesis.documents"):
        document_index(options(), tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(("count", "shards"), [(7, 3), (2, 5), (9, 1)])
def test_the_shards_share_the_candidates(count: int, shards: int) -> None:
    chosen = options(count=count, shards=shards)
    quotas = [quota(chosen, number) for number in range(shards)]
    assert sum(quotas) == count and max(quotas) - min(quotas) <= 1
