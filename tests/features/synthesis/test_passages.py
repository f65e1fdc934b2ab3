"""Passages hold whole sentences, share a term, lie far apart, and depend on their document alone."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.evaluation.contamination import AskedTexts
from gateau_dagster.features.synthesis import passages as passages_module
from gateau_dagster.features.synthesis.config import SynthesisConfig
from gateau_dagster.features.synthesis.passages import (
    PASSAGES_OF,
    SourceDocument,
    candidates,
    document_index,
    quota,
    split_passages,
    terms,
    usable_passages,
)
from gateau_dagster.features.synthesis.scripted_generator import demo_document
from tests.kit.error_codes import refused
from tests.kit.tiny_models import text

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
    rejects = [each for number in range(3) for each in index.rejected(number)]
    assert [each.sample_id for each in rejects] == ["two.jsonl:2"]
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


@pytest.mark.parametrize("preset", ["verified", "prolong"])
def test_the_order_of_keys_changes_no_candidate(preset: str) -> None:
    kinds = {"two_passages": 0.3, "compare": 0.2, "count": 0.1, "self": 0.1}
    lengths = {4096: 0.1, 8192: 0.2, 16384: 0.6}
    shares = [{"kinds": each} if preset == "verified" else {} for each in (kinds, dict(reversed(kinds.items())))]
    one, two = (
        options(preset=preset, lengths=each, **chosen)
        for each, chosen in zip((lengths, dict(reversed(lengths.items()))), shares, strict=True)
    )
    assert one.model_dump() == two.model_dump(), "the shares are the same to the last bit"
    assert candidates(documents(3), one, 60) == candidates(documents(3), two, 60)


def test_a_kind_that_a_document_does_not_allow_ends_no_document() -> None:
    """No term is shared by three passages far apart, so nine of ten draws of the kind find nothing."""
    whole = " ".join(f"The {word} of {word}ia saw {word}us at dusk with {word}o and {word}e ." for word in WORDS)
    given = SourceDocument(name="1" * 32, text=whole)
    rows = candidates([given], options(kinds={"count": 0.9, "self": 0.1}, passage_words=12), 10)
    assert [row["kind"] for row in rows] == ["self"] * 10
    assert len(usable_passages(whole, 12)) >= 10


WORDS = ["Alm", "Bor", "Cin", "Dov", "Elk", "Fam", "Gur", "Hix", "Ilm", "Jov", "Kam", "Lur", "Mox", "Nim"]


def test_a_document_offers_every_pair_of_passages_before_it_ends() -> None:
    """Each of 12 names is in two passages far apart, and the document ends after these pairs."""
    sentences = [
        " ".join([f"{half}{word.lower()}{end}" for end in ("um", "os", "ir", "at", "en", "ol")] + [f"by {word} ."])
        for half in "xy"
        for word in WORDS[:12]
    ]
    given = SourceDocument(name="2" * 32, text=" ".join(sentences))
    for seed in range(6):
        rows = candidates([given], options(kinds={"two_passages": 1.0}, passage_words=8, seed=seed), 100)
        assert sorted(row["term"] for row in rows) == sorted(word.casefold() for word in WORDS[:12])


def test_documents_are_split_and_drawn_from_only_as_far_as_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "gateau_dagster.features.synthesis.passages"
    counts: dict[str, int] = dict.fromkeys(("usable_passages", "split_passages", "far_apart"), 0)

    def counting(name: str, real: Any) -> Any:
        def call(*given: Any) -> Any:
            counts[name] += 1
            return real(*given)

        return call

    for name in counts:
        monkeypatch.setattr(f"{module}.{name}", counting(name, getattr(passages_module, name)))
    assert len(candidates(documents(30), options(kinds={"two_passages": 1.0}), 5)) == 5
    assert counts["usable_passages"] == 5
    assert counts["far_apart"] <= 5 + 5 * len(terms(demo_document(1))), "one draw each, and one look at each term"
    counts.update(dict.fromkeys(counts, 0))
    rows = candidates(documents(1), options(preset="prolong", lengths={100: 1.0}, passage_words=8), 40)
    assert sum(row["kind"] == "prolong_summary" for row in rows) > 3
    assert counts["split_passages"] == 2, "into passages once, and into chunks once"


def test_documents_without_a_text_are_an_error_with_its_reasons(tmp_path: Path) -> None:
    (tmp_path / "books.jsonl").write_text('{"body": "A text."}\n' * 5)
    for _ in range(2):  # read, and from the saved index
        with refused("data.no_usable_record", "no usable document .*\n.*5 x no text: the field 'text' is missing"):
            document_index(options(documents="*.jsonl"), tmp_path, tmp_path / "cache")


def test_a_rejected_record_changes_one_shard(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("A plain text.")
    chosen = options(documents=["*.txt", "*.jsonl"], shards=4)
    (tmp_path / "two.jsonl").write_text('{"text": "A record."}\n')
    index = document_index(chosen, tmp_path, tmp_path / "cache")
    (tmp_path / "two.jsonl").write_text('{"text": "A record."}\n{"text": 5}\n')
    again = document_index(chosen, tmp_path, tmp_path / "cache")
    changed = [number for number in range(4) if index.digest(number) != again.digest(number)]
    assert changed == [number for number in range(4) if again.rejected(number)] and len(changed) == 1


def test_too_few_documents_are_told(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text(demo_document(1))
    index = document_index(options(shards=4, count=1000), tmp_path, tmp_path / "cache")
    (number,) = index.table["shard"].to_list()
    assert index.warnings(options(shards=4, count=1000), {}) == [
        "synthesis.count: at most 250 of 1,000 candidates: 3 of 4 shards have no document; lower synthesis.shards, or "
        "add documents"
    ]
    (found,) = index.warnings(options(shards=4, count=1000), {number: 90})
    assert found.startswith("synthesis.count: 90 of 1,000 candidates: 3 of 4 shards")
    (tmp_path / "empty.txt").write_text("")
    index = document_index(options(shards=1, count=10), tmp_path, tmp_path / "cache")
    rejected, few = index.warnings(options(shards=1, count=10), {0: 9})
    assert rejected.startswith("synthesis.documents: 1 of 2 records rejected (50 %)")
    assert few == "synthesis.count: 9 of 10 candidates: too few documents; add documents, or lower synthesis.count"
    assert index.warnings(options(shards=1, count=9), {0: 9}) == [rejected]
