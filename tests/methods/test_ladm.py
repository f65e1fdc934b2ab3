"""The method `ladm`: its table from a model, its scores and ablations from the table, and bad configurations."""

import re
from itertools import chain
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.ladm import COLUMNS
from gateau_dagster.models.loaded import ForwardWork
from tests.kit.tiny_models import loaded_model, tokenizer
from tests.methods import measured
from tests.methods.configured import method_of, scores_of
from tests.methods.measured import prose
from tests.scoring.builders import eager_matrices, reference_parts, slow_cds

OPTIONS = {"span_length": 16, "local_spans": 2, "earlier_stride": 2, "later_stride": 3, "first_scored": 5}
SLOW: Any = {"length": 16, "m": 1, "n": 2, "d": 2, "d_later": 3, "n0": 5}


def options_of(given: dict[str, Any]) -> dict[str, Any]:
    """OPTIONS with others; the program's variant has no use for two of them."""
    unread = {"local_spans", "first_scored"} if given.get("variant") == "program" else set[str]()
    return {name: value for name, value in OPTIONS.items() if name not in unread} | given


def outcomes(work: ForwardWork | None = None, **options: Any) -> list[Any]:
    return measured.outcomes("ladm", options_of(options), work)


def frame(**options: Any) -> pl.DataFrame:
    rows = [row for row in outcomes(**options) if not isinstance(row, Reject)]
    return pl.DataFrame(rows, schema=tables.schema(COLUMNS))


def scores(found: pl.DataFrame, **options: Any) -> dict[str, float | None]:
    return scores_of("ladm", {"span_attention/long": found}, options=options_of(options))


def test_row_or_reject_for_each_sample_in_order() -> None:
    work = ForwardWork()
    first, second, third, fourth = outcomes(work)
    assert set(first) == set(second) == set(fourth) == set(tables.schema(COLUMNS))
    assert third == Reject(sample_id="c", reason="the response has no tokens")
    assert [row["digest"] for row in (first, second, fourth)] == [prose()[place].digest for place in (0, 1, 3)]
    assert first["spans"] == first["tokens"] // 16 and first["scored_spans"][:2] == [5, 8]
    assert len(first["deviation"]) == 2 * len(first["scored_spans"])
    assert fourth["scored_spans"] == fourth["focus"] == []
    assert work.tokens == first["tokens"] + second["tokens"] and work.flops > 0


@pytest.mark.parametrize("variant", ["paper", "program"])
def test_scores_and_ablations_agree_with_the_equations(variant: str) -> None:
    found = frame(variant=variant)
    matrices = {
        sample.sample_id: eager_matrices(
            loaded_model("llama").model, [*chain(*reference_parts(tokenizer(), sample, "gateau"))]
        )
        for sample in prose()[:2]
    }
    for off in ((), ("deviation",), ("interval", "position"), ("position",)):
        switches = dict.fromkeys(off, False)
        got = scores(found, variant=variant, **{f"{name}_weight": False for name in off})
        assert got.pop("d") is None and "c" not in got
        for name, score in got.items():
            want = slow_cds(matrices[name], program=variant == "program", **SLOW, **switches)
            assert score == pytest.approx(want, rel=1e-4) and score != 0


@pytest.mark.parametrize(
    ("options", "characters", "said"),
    [
        (
            {},
            [8_000, 8_703, 90_000],
            r"fewer than 2,176 tokens \(17 spans of 128\), which about 67 % .*first_scored in",
        ),
        ({"variant": "program"}, [9_219], r"fewer than 2,305 tokens .*which about 100 % .*or earlier_stride in"),
        ({}, [8_704, 90_000], None),
        ({"span_length": 16}, [8_000], None),
        ({}, [100] + [90_000] * 99, None),
    ],
)
def test_samples_too_short_for_a_score_are_warned_of(
    options: dict[str, Any], characters: list[int], said: str | None
) -> None:
    found = method_of("ladm", options=options).warnings(pl.DataFrame({"characters": characters}))
    assert len(found) == (said is not None)
    if said is not None:
        assert re.search(said, found[0])
