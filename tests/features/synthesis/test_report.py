"""The report shows the yield of synthetic samples by kind, length and reason, and where their evidence is."""

from pathlib import Path

import polars as pl

from gateau_dagster.explanation.maps import EvidenceMaps
from gateau_dagster.features.report.build import _environment
from gateau_dagster.features.synthesis.candidate_checks import CHECKS, CLOSED_BOOK, NEEDED, VERBATIM
from gateau_dagster.features.synthesis.config import KINDS
from gateau_dagster.features.synthesis.report import shown_candidates, synthesis_section
from tests.explanation.test_evidence import made
from tests.features.synthesis.test_candidate_checks import PASSAGES, ROWS, WordModel, checking, tables


def test_the_yield_and_the_shown_samples(tmp_path: Path) -> None:
    questions, contexts = given = tables(*ROWS.values(), *[{}] * 20)
    work, _ = checking(tmp_path, WordModel())
    checked = work.table(*given)
    shown = shown_candidates(checked)
    assert shown["accepted"].sum() == 10 and shown.height == 10 + len(ROWS) - 1
    texts = questions.select("sample_id", "question", "answer", "evidence")
    places = [{"start": 0, "end": len(PASSAGES[0])}, {"start": 100, "end": 100 + len(PASSAGES[1])}]
    built = contexts.select("sample_id", "context", positions=pl.lit(places))
    first = str(shown.filter("accepted")["sample_id"][0])
    maps = EvidenceMaps(maps={first: made()})
    section = synthesis_section(checked, shown.join(texts, on="sample_id").join(built, on="sample_id"), maps)
    by_kind, by_length, reasons = (each.frame for each in section.tables)
    for each in (by_kind, by_length):
        assert (each["candidates"].sum(), each["accepted"].sum()) == (checked.height, checked["accepted"].sum())
    assert reasons["candidates"].sum() == checked.height - checked["accepted"].sum()
    accepted, refused = section.cards.values()
    assert [*section.cards] == ["10 samples, accepted", f"{len(ROWS) - 1} samples, refused"]
    assert {card.reason for card in refused} == {*ROWS} - {""} and len(accepted) == 10
    for card in accepted:
        assert card.places is not None and [bar.level for bar in card.places.bars] == [8, 8], "the truth"
        assert card.gains is not None
        found = [(each.start, each.end, each.added) for each in card.gains.stretches]
        assert found == [(each["start"], each["end"], 0.5) for each in places], "the evidence of theta_B"
    by_reason = {card.reason: card for card in refused}
    assert by_reason[CLOSED_BOOK].gains is None, "its passages were not compared"
    gains = by_reason[NEEDED].gains
    assert gains is not None and [each.added for each in gains.stretches] == [1.0, 0.0]
    assert "passage 1" in by_reason[VERBATIM].detail
    assert [card.evidence is not None for card in accepted] == [card.sample_id == first for card in accepted]
    page = _environment().get_template("further.html.j2").render(further=[section], pictures={})
    assert page.count('aria-label="The places of 2 passages in the context"') == len(accepted) + len(refused)
    assert page.count("By theta_B: what each stretch") == sum(card.gains is not None for card in (*accepted, *refused))
    assert 'class="evidence"' in page and "lives in Rome" in page


def test_a_candidate_without_a_context_has_no_map(tmp_path: Path) -> None:
    questions, _ = given = tables({"fault": "unreadable", "question": "", "answer": "", "evidence": []})
    work, _ = checking(tmp_path, WordModel())
    checked = work.table(*given)
    row = checked.join(questions.select("sample_id", "question", "answer", "evidence"), on="sample_id")
    row = row.with_columns(context=pl.lit(None, pl.String()), positions=pl.lit(None, pl.List(pl.Struct({}))))
    (card,) = synthesis_section(checked, row, EvidenceMaps()).cards["1 sample, refused"]
    assert card.places is None and card.evidence is None and card.gains is None


def test_ten_refused_samples_are_of_as_many_kinds_and_reasons_as_possible() -> None:
    reasons = [*CHECKS, "duplicate", "unreadable"]
    pairs = [(kind, reason) for kind in KINDS for reason in reasons for _ in range(3)]
    rows = [
        {"sample_id": f"{place:04d}", "kind": kind, "reason": reason, "accepted": False}
        for place, (kind, reason) in enumerate(pairs)
    ]
    rows += [{"sample_id": "yes", "kind": "self", "reason": "", "accepted": True}]
    found = shown_candidates(pl.DataFrame(rows))
    refused = found.filter(~pl.col("accepted"))
    assert (refused.height, found.height) == (10, 11)
    assert {*refused["kind"]} == {*KINDS} and {*refused["reason"]} == {*reasons}
    assert found.equals(shown_candidates(pl.DataFrame(rows[::-1])))
