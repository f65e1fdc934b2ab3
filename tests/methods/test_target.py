"""Closeness to a target set against a plain loop; the target itself is never chosen."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from gateau_dagster.config import Config
from gateau_dagster.methods import target
from gateau_dagster.methods.registry import chosen_methods, sample_tables
from tests.kit.error_codes import refused
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


def slow_round_robin(cosines: dict[str, dict[str, float]]) -> list[str]:
    """Return the samples as targets name them in turn, as `get_top_influences.py` does: a repeated one costs a turn."""
    queues = [sorted(of_target, key=lambda name: (-of_target[name], name)) for of_target in cosines.values()]
    taken: list[str] = []
    while any(queues):
        for queue in queues:
            named = queue.pop(0)
            if named not in taken:
                taken.append(named)
    return taken


@pytest.mark.parametrize("order", ["round_robin", "round_robin_sources"])
def test_targets_choose_in_turn(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_ROWS", 4)
    stored = tables_of(seed=3)
    sources, vectors = dict(stored["raw_long_sft"].iter_rows()), dict(stored["embedding/mini"].sort("sample_id").rows())
    others = [name for name, vector in vectors.items() if vector is not None and not sources[name].endswith("wanted")]
    cosines: dict[str, dict[str, float]] = {}
    for source in ("wanted", "other wanted"):
        for name in (name for name in vectors if sources[name] == source):
            key = name if order == "round_robin" else source
            for other in others:
                cosine = sum(a * b for a, b in zip(vectors[name], vectors[other], strict=True))
                cosines.setdefault(key, {})[other] = max(cosine, cosines.get(key, {}).get(other, -2))
    if order == "round_robin":
        cosines = dict(sorted(cosines.items()))
    found = {name: value for name, value in score(stored, order=order).items() if value is not None}
    assert sorted(found, key=lambda name: -found[name]) == slow_round_robin(cosines)
    assert len({*found.values()}) == len(found) == len(others)


def test_tokens_may_weigh_by_their_position() -> None:
    config = with_target(pooling="position_weighted")
    assert "weighted_embedding/mini" in sample_tables(config)
    stored = tables_of()
    stored["weighted_embedding/mini"] = stored.pop("embedding/mini")
    assert score(stored, pooling="position_weighted") == score(tables_of())


def test_the_defaults_keep_the_dump_of_earlier_stores() -> None:
    dumped = chosen_methods(with_target())["target"].options.model_dump(mode="json")
    assert dumped == {"encoder": "mini", "sources": ["wanted", "other wanted"], "nearest": 5}


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
    assert set(score(stored).values()) == set(score(stored, order="round_robin").values()) == {None}
