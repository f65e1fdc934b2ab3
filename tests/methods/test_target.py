"""Closeness to a target set against a plain loop; the target itself is never chosen."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config import Config
from gateau_dagster.methods import target
from gateau_dagster.methods.registry import chosen_methods, sample_tables
from tests.error_codes import refused
from tests.methods.configured import configured

ENCODER = {"mini": {"path": "a/mini", "task": "embedding"}}


def with_target(**options: Any) -> Config:
    given = {"encoder": "mini", "sources": ["wanted", "other wanted"], **options}
    return configured(method="target", models=ENCODER, options={"target": given})


def tables_of(count: int = 30, seed: int = 0) -> dict[str, pl.DataFrame]:
    """Samples of three sources, in another order in each table; one has no embedding."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 6))
    unit = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    ids = [f"s{number:02d}" for number in range(count)]
    sources = [("wanted", "chat", "book", "other wanted")[number % 4] for number in range(count)]
    rows = [None if number == 1 else unit[number].tolist() for number in range(count)]
    embedding = pl.DataFrame({"sample_id": ids, "embedding": rows}, schema_overrides={"embedding": pl.List(pl.Float32)})
    raw = pl.DataFrame({"sample_id": ids, "source": sources})
    return {"raw_long_sft": raw.reverse(), "embedding/mini": embedding.sample(fraction=1, shuffle=True, seed=seed)}


def score(stored: dict[str, pl.DataFrame], **options: Any) -> dict[str, float | None]:
    return dict(chosen_methods(with_target(**options))["target"].scores(stored).iter_rows())


@pytest.mark.parametrize("nearest", [1, 3, 5, 99])
def test_against_a_plain_loop(nearest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_ROWS", 4)
    stored = tables_of()
    sources = dict(stored["raw_long_sft"].iter_rows())
    vectors = dict(stored["embedding/mini"].iter_rows())
    found = score(stored, nearest=nearest)
    assert {*found} == {*sources}
    for sample, value in found.items():
        if sources[sample].endswith("wanted") or vectors[sample] is None:
            assert value is None
            continue
        cosines = []
        for other, source in sources.items():
            if source.endswith("wanted") and vectors[other] is not None:
                cosines.append(sum(a * b for a, b in zip(vectors[sample], vectors[other], strict=True)))
        largest = sorted(cosines, reverse=True)[:nearest]
        assert value == pytest.approx(sum(largest) / len(largest), abs=1e-6)


def test_it_reads_embeddings_that_are_there() -> None:
    config = with_target()
    (table,) = [each for each in sample_tables(config).values() if each.asset == "embedding/mini"]
    assert table.model == "mini"
    reads = {"raw_long_sft": ["sample_id", "source"], "embedding/mini": ["sample_id", "embedding"]}
    assert chosen_methods(config)["target"].reads() == reads


@pytest.mark.parametrize(
    ("sources", "refusal", "warnings"),
    [
        (["wanted"], None, []),
        (["wanted", "wantde"], None, ["no usable sample has the source 'wantde'"]),
        (["nowhere"], "no usable sample has the source 'nowhere': add the target set", None),
        (["wanted", "chat"], "all usable samples belong to the target", None),
    ],
)
def test_what_of_the_target_is_not_in_the_data_is_told_before(
    sources: list[str], refusal: str | None, warnings: list[str] | None
) -> None:
    method, accepted = (
        chosen_methods(with_target(sources=sources))["target"],
        pl.DataFrame({"source": ["chat", "wanted"]}),
    )
    if refusal is not None:
        with refused("methods.embedding_target", refusal):
            method.check_data(accepted)
    else:
        assert warnings is not None
        method.check_data(accepted)
        told = method.warnings(accepted)
        assert len(told) == len(warnings) and all(part in one for part, one in zip(warnings, told, strict=True))


def test_a_target_whose_samples_no_encoder_read_is_refused_after() -> None:
    with refused("methods.embedding_target", "'nowhere'"):
        score(tables_of(), sources=["nowhere"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoder": "none"}, r"selection\.options\.target\.encoder: `models` has no 'none'"),
        ({"encoder": "long"}, r"target\.encoder: models\.long has task causal, but embedding is needed"),
        ({"sources": []}, r"target\.sources: name values"),
        ({"nearest": 0}, r"selection\.options\.target\.nearest"),
    ],
)
def test_what_cannot_be_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        with_target(**options)


def test_of_nothing_but_the_target_no_sample_has_a_score() -> None:
    stored = tables_of()
    stored["raw_long_sft"] = stored["raw_long_sft"].with_columns(source=pl.lit("wanted"))
    assert set(score(stored).values()) == {None}
