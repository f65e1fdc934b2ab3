"""Texts out of files, and the choice that keeps the proportions of the domains."""

import gzip
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.data.sources import resolve_files
from gateau_dagster.data.text_corpus import (
    CorpusText,
    ScoredText,
    TextFields,
    read_texts,
    records_of,
)
from gateau_dagster.selection.token_budget import choose_by_domain
from tests.kit.error_codes import refused


def scored(name: str, domain: str, score: float | None, tokens: int = 10) -> ScoredText:
    digest = CorpusText(name=name, domain=domain, text="one", file=0, record=1).digest
    return ScoredText(name=name, domain=domain, tokens=tokens, spans=20, score=score, file=0, record=1, digest=digest)


def slow_choice(texts: list[ScoredText], budget: int) -> set[str]:
    """Share after share, from nothing: the last one whose texts fit, plus what fits of the next, best texts first."""
    ranked = sorted((one for one in texts if one.score is not None), key=lambda one: (-(one.score or 0), one.name))
    members = {domain: [one for one in ranked if one.domain == domain] for domain in {one.domain for one in ranked}}
    chosen: set[str] = set()
    for share in sorted({Fraction(n + 1, len(best)) for best in members.values() for n in range(len(best))}):
        for text in ranked:
            best = members[text.domain]
            if Fraction(best.index(text) + 1, len(best)) == share:
                budget -= text.tokens
                if budget < 0:
                    return chosen
                chosen.add(text.name)
    return chosen


@pytest.mark.parametrize("seed", range(6))
def test_choice_agrees_with_growing_the_share_step_by_step(seed: int) -> None:
    rng = random.Random(seed)
    texts = [
        scored(f"t{n}", rng.choice("abc"), rng.choice([None, 0.5, rng.random()]), rng.randint(1, 30)) for n in range(40)
    ]
    for budget in (0, 9, 25, 150, 380, 10_000):
        got = choose_by_domain(texts, budget)
        assert got == slow_choice(texts, budget) == choose_by_domain(texts[::-1], budget)
        assert sum(text.tokens for text in texts if text.name in got) <= budget
        assert not any(text.score is None for text in texts if text.name in got)
        assert choose_by_domain([text for text in texts if text.score is not None], budget) == got


def test_records_are_texts_or_rejects_with_a_reason(tmp_path: Path) -> None:
    lines = [
        {"body": {"text": "one"}, "meta": {"set": "books"}, "id": 7},
        {"body": {"text": "  "}, "meta": {"set": "books"}, "id": 8},
        {"body": "no object", "meta": {"set": "books"}, "id": 9},
        {"body": {"text": 3}, "meta": {"set": "books"}, "id": 10},
        {"body": {"text": "two"}, "meta": {"set": True}, "id": 11},
        {"body": {"text": "two"}, "meta": {"set": "books"}, "id": "a\ud800"},
        {"body": {"text": "again"}, "meta": {"set": "books"}, "id": "7"},
        ["a list"],
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n{broken\n"
    (tmp_path / "web.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    files = resolve_files("web.jsonl.gz", tmp_path)
    sizes: list[int] = []
    fields = TextFields(text="body.text", domain="meta.set", name="id")
    first, *rejects = read_texts(files, fields, sizes.append)
    assert first == CorpusText(name="7", domain="books", text="one", file=0, record=1)
    assert all(isinstance(reject, Reject) for reject in rejects) and sum(sizes) == files[0].size
    assert [(reject.sample_id, reject.reason) for reject in rejects if isinstance(reject, Reject)] == [
        ("web.jsonl.gz:2", "no text: the field 'body.text' is empty"),
        ("web.jsonl.gz:3", "no text: the field 'body.text' is missing"),
        ("web.jsonl.gz:4", "no text: the field 'body.text' is no text"),
        ("web.jsonl.gz:5", "no domain: the field 'meta.set' holds no text or whole number"),
        ("web.jsonl.gz:6", "no name: the field 'id' holds no text or whole number"),
        ("web.jsonl.gz:7", "the name '7' came before"),
        ("web.jsonl.gz:8", "no text: the field 'body.text' is missing"),
        ("web.jsonl.gz:9", "malformed JSON: Expecting property name enclosed in double quotes at column 2"),
    ]
    assert list(records_of(files, fields, [scored("7", "books", 1.0)])) == [(scored("7", "books", 1.0), lines[0])]


@pytest.mark.parametrize("now", ['{"text": "two"}\n', '{"text": 3}\n', "{broken\n", ""])
def test_a_record_that_no_longer_holds_the_scored_text_is_an_error(tmp_path: Path, now: str) -> None:
    file = tmp_path / "web.jsonl"
    file.write_text('{"text": "one"}\n')
    files = resolve_files("web.jsonl", tmp_path)
    chosen = [scored("web.jsonl:1", "web", 1.0)]
    assert list(records_of(files, TextFields(), chosen)) == [(chosen[0], {"text": "one"})]
    file.write_text(now)
    with refused("data.changed", r"web\.jsonl:1"):
        list(records_of(files, TextFields(), chosen))


def test_without_fields_the_file_names_domain_and_text(tmp_path: Path) -> None:
    (tmp_path / "code.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n')
    found = list(read_texts(resolve_files("code.jsonl", tmp_path), TextFields(), lambda _: None))
    assert found == [
        CorpusText(name="code.jsonl:1", domain="code", text="a", file=0, record=1),
        CorpusText(name="code.jsonl:3", domain="code", text="b", file=0, record=3),
    ]
