"""How often maps name segments, by source, and how often the right ones: against counting by hand."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.data.sample import Sample
from gateau_dagster.demo.language import build_tokenizer
from gateau_dagster.report.build import evidence_shares
from gateau_dagster.report.evidence import evidence
from gateau_dagster.report.evidence_card import NAMED, EvidenceMaps
from gateau_dagster.report.inputs import ReportInputs
from tests.report.builders import config, inputs, page_of
from tests.report.evidence_rows import LENGTH, rows_of

FILLER = "the baker admires the tower of amber . "  # a segment
FACTS = {1: "metal", 3: "planet", 5: "spice"}  # segments, with what stands in them


@cache
def tokenizer() -> Any:
    return build_tokenizer(512)


def texts() -> dict[str, tuple[str, str, list[int]]]:
    """Source, instruction and the segments that the map shall name, by sample."""
    return {
        "s000000": ("far", "recall metal planet", [1, 3]),
        "s000001": ("far", "recall metal planet", [1]),
        "s000002": ("far", "recall metal", [1, 3]),
        "s000003": ("near", "recall spice", []),
        "s000004": ("near", "recall spice", [2]),
        "s000005": ("no_context", "tell about baker", []),
    }


def given(**changes: Any) -> ReportInputs:
    facts = [f"note {FACTS[place]} {FACTS[place]}-1 . the baker . ." for place in FACTS]
    context = FILLER + " ".join(f"{fact} {FILLER}" for fact in facts)
    raw = pl.DataFrame(
        [
            {"sample_id": name, "source": source, "context": context, "instruction": asked, "response": "one two three"}
            for name, (source, asked, _) in texts().items()
        ]
    ).with_columns(digest=pl.lit("x"))
    named = pl.DataFrame([(name, places) for name, (*_, places) in texts().items()], schema=NAMED, orient="row")

    def maps(samples: Sequence[Sample]) -> EvidenceMaps:
        made = {}
        for one in samples:
            gives = [(place, token, 0.9) for token, place in enumerate(texts()[one.sample_id][2])]
            rows = rows_of(tokenizer(), one, near=2, gives=gives)
            made[one.sample_id] = evidence(one, rows, tokenizer(), segment_length=LENGTH)
        return EvidenceMaps(maps=made)

    demo = config(selection={"ground_truth": ["far"]}, demo={})
    fields = {"config": demo, "raw": raw.select(*tables.schema(tables.RAW_LONG_SFT).names()).lazy()}
    return inputs(6, **(fields | {"named": named, "evidence": maps} | changes))


def test_the_shares_are_those_of_counting() -> None:
    found = evidence_shares(given())
    assert found is not None
    assert [(line.source, line.samples, line.named, line.right) for line in found.sources] == [
        ("far", 3, 3, 1),
        ("near", 2, 1, 1),
        ("no_context", 1, 0, 1),
    ]
    assert (found.sources[0].share, found.sources[1].share) == (1.0, 0.5)
    assert "1 (33.3" in found.sentence and "2 (66.7" in found.sentence
    page = page_of(given())
    assert found.sentence.replace("\u00a0", " ") in page.text("evidence") and "#evidence" in {
        link["href"] for link in page.attributes("a")
    }


def test_of_other_data_nothing_is_said_to_be_right() -> None:
    found = evidence_shares(given(config=config(selection={"ground_truth": ["far"]})))
    assert found is not None and not found.sentence
    assert {line.right for line in found.sources} == {None} and {line.right_share for line in found.sources} == {None}


def test_many_sources_are_one_line_in_the_end() -> None:
    raw = given().raw.lazy().collect()
    parts = [raw.head(1).with_columns(sample_id=pl.lit(f"x{n}"), source=pl.lit(f"source {n}")) for n in range(30)]
    many = pl.concat(parts)
    named = many.select("sample_id", named=pl.lit([1], dtype=pl.List(pl.Int32())))
    found = evidence_shares(given(raw=many.lazy(), named=named, config=config()))
    assert found is not None and len(found.sources) == 21
    assert (found.sources[-1].samples, found.sources[-1].named) == (10, 10)


def test_without_measured_segments_there_is_no_section() -> None:
    assert evidence_shares(inputs(6)) is None
    assert evidence_shares(given(named=NAMED.to_frame())) is None
