"""The method `delta_perplexity`: its table from a model, its scores from the table, and bad configurations."""

from itertools import chain
from typing import Any

import polars as pl
import pytest

from gateau_dagster import tables
from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.delta_perplexity import COLUMNS, METHOD, DeltaPerplexityOptions
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.methods.sample_table import Running
from gateau_dagster.scoring.dependency_scores import choose_pairs
from gateau_dagster.scoring.effort import Work
from tests.methods.configured import configured
from tests.methods.test_ladm import prose
from tests.scoring.builders import loaded_model, tokenizer
from tests.scoring.reference import reference_model, reference_parts
from tests.scoring.scored import scoring
from tests.scoring.slow_pairs import slow_lds, slow_perplexities

OPTIONS = {"segment_length": 64, "pairs": 9, "threshold": -0.04}


def outcomes(work: Work | None = None) -> list[Any]:
    """Rows and rejects of the samples, from the table that the method declares."""
    (table,) = METHOD.tables(configured(), DeltaPerplexityOptions.model_validate(OPTIONS))
    running = Running(max_length=2000, scoring=scoring(), work=work or Work())
    return list(table.score(loaded_model("llama"), prose(), running))


def scores(found: pl.DataFrame, **options: Any) -> dict[str, float | None]:
    config = configured(method="delta_perplexity", options={"delta_perplexity": OPTIONS | options})
    chosen = chosen_methods(config)["delta_perplexity"]
    ((asset, columns),) = chosen.reads(config).items()
    assert asset == "segment_pairs/long" == chosen.tables(config)[0].asset
    made = chosen.score({asset: found.select(columns)}, config)
    assert made.schema == {"sample_id": pl.String, "score": pl.Float64}
    return dict(made.iter_rows())


def test_row_or_reject_for_each_sample_in_order() -> None:
    work = Work()
    first, second, third, fourth = outcomes(work)
    assert set(first) == set(second) == set(fourth) == set(tables.schema(COLUMNS))
    assert third == Reject(sample_id="c", reason="the response has no tokens")
    assert [row["digest"] for row in (first, second, fourth)] == [prose()[place].digest for place in (0, 1, 3)]
    assert len(first["segment_perplexity"]) == first["tokens"] // 64
    assert len(first["pair_perplexity"]) == len(first["later_segment"]) == len(first["earlier_segment"]) == 9
    assert fourth["segment_perplexity"] == fourth["pair_perplexity"] == []
    segments = sum(len(row["segment_perplexity"]) for row in (first, second))
    assert work.tokens == 64 * segments + 18 * 128 and work.flops > 0


def test_scores_agree_with_the_definitions() -> None:
    found = pl.DataFrame([row for row in outcomes() if not isinstance(row, Reject)], schema=tables.schema(COLUMNS))
    twin = reference_model(loaded_model("llama").model)
    measured = {}
    for sample in prose()[:2]:
        ids = [*chain(*reference_parts(tokenizer(), sample, "gateau"))][1:]
        measured[sample.sample_id] = slow_perplexities(twin, ids, 64, choose_pairs(len(ids) // 64, 9, sample.digest))
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"segments": 512}),
        ({"window": 256}, {"segments": 4}),
        ({"variant": "program"}, {"segments": 512, "program": True}),
        ({"alpha": 3, "beta": 0.5}, {"segments": 512, "alpha": 3, "beta": 0.5}),
        ({"threshold": -0.5}, {"segments": 512, "threshold": -0.5}),
    ]
    for options, slow in cases:
        got = scores(found, **options)
        assert got.pop("d") is None and "c" not in got
        for name, score in got.items():
            assert score == pytest.approx(slow_lds(*measured[name], **({"threshold": -0.04} | slow)), rel=2e-3)
    own = scores(found, window=None)
    for name, (alone, behind) in measured.items():
        assert own[name] == pytest.approx(slow_lds(alone, behind, segments=len(alone), threshold=-0.04), rel=2e-3)


def test_only_segments_and_pairs_are_what_the_model_computes() -> None:
    def settings(**options: Any) -> Any:
        return METHOD.tables(configured(), DeltaPerplexityOptions.model_validate(options))[0].settings

    assert settings() == {"segment_length": 128, "pairs": 5000}
    assert settings(variant="program", threshold=0.3, alpha=2, window=None) == settings() != settings(pairs=9)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "lon"}, r"options\.delta_perplexity\.model: 'lon' is none of models"),
        ({"model": "reward"}, r"models\.reward has task reward, but causal is needed"),
        ({"segment_length": 40_000, "window": None}, "two segments of 40000 tokens are needed, and scoring.max_length"),
        ({"segment_length": 1}, r"options\.delta_perplexity\.segment_length: Input should be greater"),
        ({"alpha": 0, "beta": 0}, "alpha and beta are both 0"),
        ({"window": 200}, r"window \(200\) must hold two segments of 128 tokens"),
    ],
)
def test_bad_options_are_named_before_any_model_runs(options: dict[str, Any], reason: str) -> None:
    models = {"reward": {"path": "a/reward", "task": "reward"}}
    with pytest.raises(ValueError, match=reason):
        chosen_methods(configured(method="delta_perplexity", options={"delta_perplexity": options}, models=models))
