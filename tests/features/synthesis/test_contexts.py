"""A context holds its passages at the recorded places, and is as long as asked for."""

from typing import Any

import pytest

from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.evaluation.benchmark import Generation, Question
from gateau_dagster.features.evaluation.contamination import AskedTexts
from gateau_dagster.features.synthesis.contexts import AMONG_PASSAGES, DOCUMENT, Context, PassagePool, context_of
from gateau_dagster.features.synthesis.passages import candidates
from gateau_dagster.features.synthesis.scripted_generator import demo_document, facts_in
from tests.features.synthesis.test_passages import documents, options

TOKENIZER = build_tokenizer(4096)
POOL = PassagePool.of(documents(6), TOKENIZER, 24)
WHOLE = len(POOL.offsets(documents(1)[0].name))


def row(kind: str, length: int, preset: str = "verified", number: int = 0) -> dict[str, Any]:
    shares = {"kinds": {kind: 1.0}} if preset == "verified" else {"preset": preset}
    rows = candidates(iter(documents(6)), options(count=200, lengths={length: 1.0}, **shares), 200)
    found = [dict(each) for each in rows if each["kind"] == kind][number]
    evidence = [
        f"note {fact.attribute} {fact.value} ." for each in found["passages"] for fact in facts_in(each["text"])
    ]
    return {**found, "question": "recall", "evidence": evidence}


def check(found: Context, given: dict[str, Any]) -> None:
    texts = [found.text[start:end] for start, end in found.positions]
    assert texts == [each["text"] for each in given["passages"]]
    assert found.tokens == len(TOKENIZER(found.text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", ["two_passages", "order", "summary"])
def test_a_document_of_about_the_length_is_the_context(kind: str, number: int) -> None:
    given = row(kind, WHOLE + 50, number=number)
    found = context_of(given, POOL, 0)
    check(found, given)
    assert found.form == DOCUMENT and found.text == POOL.texts[given["document"]]


@pytest.mark.parametrize("length", [300, 3 * WHOLE])
@pytest.mark.parametrize("number", range(3))
def test_other_lengths_are_passages_among_hard_negatives(length: int, number: int) -> None:
    given = row("two_passages", length, number=number)
    found = context_of(given, POOL, 0)
    check(found, given)
    assert found.form == AMONG_PASSAGES and length - 120 <= found.tokens <= length
    assert context_of(given, POOL, 0) == found != context_of(given, POOL, 1)
    for quote in given["evidence"]:
        assert found.text.count(quote) == 1, "no negative holds the evidence"


def test_negatives_share_terms_with_the_passages_before_others() -> None:
    import numpy as np

    from gateau_dagster.features.synthesis.passages import terms

    given = row("two_passages", 500)
    order = list(POOL.negatives(given, np.random.default_rng(0)))
    wanted = terms(" ".join(each["text"] for each in given["passages"]))
    shared = [len(wanted & terms(each)) for each in order]
    third = len(order) // 3
    assert sum(shared[:third]) > 1.2 * sum(shared[-third:])


@pytest.mark.parametrize("number", range(4))
def test_prolong_takes_a_part_chunks_of_one_document_or_the_summarised_run(number: int) -> None:
    part = row("prolong_qa", 200, "prolong", number)
    found = context_of(part, POOL, 0)
    check(found, part)
    assert found.form == DOCUMENT and found.tokens == 200 and found.text in POOL.texts[part["document"]]
    chunks = row("prolong_rag", 300, "prolong", number)
    found = context_of(chunks, POOL, 0)
    check(found, chunks)
    assert all(piece in POOL.texts[chunks["document"]] for piece in found.text.split("\n\n"))
    summary = row("prolong_summary", 300, "prolong", number)
    found = context_of(summary, POOL, 0)
    assert found.tokens <= 300 and found.text in POOL.texts[summary["document"]]
    assert found.text.startswith(summary["passages"][0]["text"][:40])


def test_the_documents_of_the_demo_hold_each_fact_once() -> None:
    facts = facts_in(demo_document(7))
    assert len(facts) == len({fact.attribute for fact in facts}) == 32


def asking(whole: str) -> list[AskedTexts]:
    """The question of a benchmark that has this text."""
    question = Question(question_id="q", group="all", turns=(whole,), generation=Generation(max_new_tokens=8))
    return [AskedTexts.of([question])]


def test_no_hard_negative_and_no_summarised_chunk_holds_a_question_of_a_benchmark() -> None:
    given = row("two_passages", 3 * WHOLE)
    found = context_of(given, POOL, 0)
    chosen = [each["text"] for each in given["passages"]]
    negative = next(each for each in found.text.split("\n\n") if each not in chosen)
    asked = asking(negative)
    pool = PassagePool.of(documents(6), TOKENIZER, 24, asked)
    again = context_of(given, pool, 0)
    check(again, given)
    assert negative not in again.text and negative not in [text for each in pool.by_document.values() for text in each]
    assert sum(map(len, pool.by_document.values())) < len(POOL.passages)

    chosen = options(preset="prolong", lengths={100: 1.0}, passage_words=8)
    whole = documents(1)[0].text
    quote = " ".join(whole.split()[30:44])
    for questions, holding in (((), True), (asking(quote), False)):
        rows = candidates(documents(1), chosen, 60, questions)
        runs = [whole[each["passages"][0]["start"] : each["passages"][-1]["end"]] for each in rows]
        summaries = [run for each, run in zip(rows, runs, strict=True) if each["kind"] == "prolong_summary"]
        assert summaries and any(quote in " ".join(run.split()) for run in summaries) == holding


def test_offsets_of_a_document_are_an_array_of_its_tokens() -> None:
    name = documents(1)[0].name
    offsets = POOL.offsets(name)
    assert offsets.dtype == "int32" and offsets is POOL.offsets(name)
    texts = "".join(POOL.texts[name][start:end] for start, end in offsets.tolist())
    assert "".join(texts.split()) == "".join(POOL.texts[name].split())
