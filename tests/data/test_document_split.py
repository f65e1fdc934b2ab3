"""The reserved documents: whole, the same for every selection, and hardly moved by what else there is."""

import random
from itertools import pairwise
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.document_split import Documents, OneDocumentError, group_sizes, split
from tests.data.test_near_duplicates import edited, words


def row(sample_id: str, context: str, instruction: str = "what?", response: str = "that.") -> dict[str, str]:
    return {"sample_id": sample_id, "context": context, "instruction": instruction, "response": response}


def questions(documents: range | list[int], *, each: int = 3) -> list[dict[str, str]]:
    """Several questions about each document; the last one about a copy of it with a few words changed."""
    rows = []
    for number in documents:
        text = words(number, 120)
        copies = [text] * (each - 1) + [edited(text, 2, number)]
        rows += [row(f"d{number}q{n}", copy, f"question {n}") for n, copy in enumerate(copies)]
    return rows


def split_of(rows: list[dict[str, str]], share: float | None = 0.3, least: float = 0.5) -> pl.DataFrame:
    documents = Documents()
    for start in range(0, len(rows), 7):  # as they come from shards
        documents.add(pl.DataFrame(rows[start : start + 7]))
    return split(documents, share=share, least=least)


def reserved(found: pl.DataFrame) -> set[str]:
    return {*found.filter("reserved")["sample_id"]}


def test_all_questions_about_a_document_stand_on_one_side() -> None:
    found = split_of(questions(range(40)))
    assert found.schema == tables.schema(tables.DOCUMENT_SPLIT) and found["sample_id"].is_sorted()
    of_text = found.with_columns(text=pl.col("sample_id").str.split("q").list.first())
    for key in ("text", "document"):
        assert of_text.group_by(key).agg(pl.col("reserved").n_unique())["reserved"].max() == 1
    assert found["document"].n_unique() == 40
    alone = split_of(questions(range(40), each=1))
    for reserving, drawn in ((alone, 0.3), (found, 1 - 0.7**2)):  # a near-duplicate is another lot
        assert abs(reserving.filter("reserved")["document"].n_unique() - 40 * drawn) < 10


def test_near_duplicates_are_documents_of_their_own_where_all_has_to_be_equal() -> None:
    assert split_of(questions(range(40)), least=1.0)["document"].n_unique() == 80


def test_neither_order_nor_ids_matter() -> None:
    rows = questions(range(30))
    before = split_of(rows)
    random.Random(1).shuffle(rows)
    assert split_of(rows).equals(before)
    renamed = split_of([each | {"sample_id": f"other {each['sample_id']}"} for each in rows])
    assert {f"other {name}" for name in reserved(before)} == reserved(renamed)


def test_more_samples_move_none_that_is_there() -> None:
    few, more = split_of(questions(range(30))), split_of(questions(range(90)))
    assert more.join(few, on="sample_id", how="semi").equals(few)
    fewer = split_of(questions(range(10, 30)))
    assert few.join(fewer, on="sample_id", how="semi").equals(fewer)


def test_a_near_duplicate_that_comes_later_frees_no_document() -> None:
    rows = questions(range(30), each=1)
    before = reserved(split_of(rows))
    freed: set[str] = set()
    joined = 0
    for number in range(30):
        after = reserved(split_of([*rows, row("new", edited(words(number, 120), 3, 77))]))
        freed |= before - after
        joined += bool(after - before - {"new"})
    assert not freed
    assert joined < 30


def test_the_smaller_share_lies_in_the_larger() -> None:
    shares = [reserved(split_of(questions(range(60)), share=share)) for share in (0.05, 0.2, 0.5, 0.9)]
    assert all(small < large for small, large in pairwise(shares))


def test_a_sample_without_context_is_a_document_of_its_own() -> None:
    rows: list[Any] = [row(f"s{n}", " \n", f"tell about {n}", words(n, 30)) for n in range(12)]
    same_words = [row("again", "", "tell about 0", words(0, 30)), row("other", "", "tell about 0", words(50, 30))]
    found = dict(split_of([*rows, *same_words]).select("sample_id", "document").iter_rows())
    assert len(set(found.values())) == 13
    assert found["again"] == found["s0"]


def test_instructions_that_samples_share_are_no_part_of_their_documents() -> None:
    """They would make one document of all, of which `per_document` takes one."""
    shared = words(99, 300)
    rows = [row(f"d{n}", f"{shared}\n\n{words(n, 60)}") for n in range(6)]
    rows += [row(f"e{n}", f"{shared}\n\n{edited(words(n, 60), 1, n)}") for n in range(6)]
    rows += [row(f"q{n}", shared, words(50 + n, 20)) for n in range(4)]
    documents = Documents()
    assert split_of(rows, share=None)["document"].n_unique() == 1
    documents.add(pl.DataFrame(rows), {each["sample_id"]: len(shared) for each in rows})
    found = dict(split(documents, share=None, least=0.5).select("sample_id", "document").iter_rows())
    assert len(set(found.values())) == 10 and all(found[f"d{n}"] == found[f"e{n}"] for n in range(6))


def test_a_context_that_is_a_label_is_no_document() -> None:
    rows = [row(f"s{n}", "Passage:", words(n, 60), "that.") for n in range(5)]
    assert split_of([*rows, row("copy", "Passage:", words(3, 60), "this.")])["document"].n_unique() == 5


@pytest.mark.parametrize("share", [1e-9, 0.999])
def test_one_document_at_least_is_reserved_and_one_is_not(share: float) -> None:
    for documents in (2, 5):
        found = split_of(questions(range(documents)), share=share)
        assert found.filter(pl.col("reserved") == (share < 0.5))["document"].n_unique() == 1


def test_one_document_alone_cannot_be_split() -> None:
    with pytest.raises(OneDocumentError):
        split_of(questions([1]))


def test_without_a_share_documents_are_the_same_and_none_is_reserved() -> None:
    rows = questions(range(20))
    alone, reserving = split_of(rows, share=None), split_of(rows)
    assert alone.drop("reserved").equals(reserving.drop("reserved")) and not alone["reserved"].any()
    assert split_of(questions([1]), share=None)["document"].n_unique() == 1, "one document is no reason to stop"


def test_groups_are_documents_of_several_samples() -> None:
    rows = [*questions([1]), *questions([2], each=2), row("alone", words(3, 120)), row("too", words(4, 120))]
    assert group_sizes(split_of(rows, share=None)).to_list() == [3, 2]
    assert group_sizes(split_of([row("a", words(1, 50)), row("b", words(2, 50))], share=None)).to_list() == []
