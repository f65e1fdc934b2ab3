"""The method `judge`: its score from ratings, and what it needs."""

from typing import Any

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.methods.registry import chosen_methods

JUDGE = {"base_url": "http://localhost:1/v1", "model": "judge", "key": None}


def configured(judge: dict[str, Any] | None = JUDGE, **options: Any) -> Config:
    return Config.model_validate({
        "long_sft": {"path": "long.jsonl"},
        "models": {"long": {"path": "a/long"}},
        "selection": {"method": "judge", "options": {"judge": options}},
        "evaluation": {"judge": judge},
    })  # fmt: skip


def score(ratings: list[tuple[str, str, float]]) -> dict[str, float]:
    schema = {"sample_id": pl.String, "characteristic": pl.String, "rating": pl.Float64}
    frame = pl.DataFrame(ratings, schema=schema, orient="row")
    return dict(chosen_methods(configured())["judge"].scores({"sample_ratings": frame}).iter_rows())


RATINGS = [
    ("b", "necessity", 4.0), ("b", "coherence", 2.0), ("a", "coherence", 5.0), ("a", "necessity", 1.5),
]  # fmt: skip


def test_the_score_is_the_mean_of_the_asked_ratings() -> None:
    assert score(RATINGS) == {"a": 3.25, "b": 3.0}
    assert score([]) == {}
