"""Information gain and key tokens against plain loops over the tokens; what is told where both models see all."""

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gateau_dagster.features.evaluation.benchmarks.long_texts import LongPplOptions
from gateau_dagster.methods import token_contrast
from gateau_dagster.methods.registry import chosen_methods
from tests.kit.error_codes import refused
from tests.methods.configured import configured, method_of, scores_of
from tests.methods.test_far_gain import LENGTHS, made

NAMES = ("information_gain", "key_tokens")


def tables_of(**tokens: list[list[float]]) -> dict[str, pl.DataFrame]:
    schema = {"sample_id": pl.String(), "digest": pl.String(), "token_probability": pl.List(pl.Float32())}
    return {
        f"perplexity/{name}": pl.DataFrame(
            {"sample_id": (ids := [f"s{n}" for n in range(len(lists))]), "digest": ids, "token_probability": lists},
            schema=schema,
        )
        for name, lists in tokens.items()
    }


def slow(found: dict[str, pl.DataFrame], sample: str, *, gain: float = 2.0, least: float = -2.0) -> dict[str, float]:
    """Both, token by token."""
    rows = {name: table.row(by_predicate=pl.col("sample_id") == sample, named=True) for name, table in found.items()}
    total, keys = 0.0, 0
    pairs = list(
        zip(rows["perplexity/long"]["token_probability"], rows["perplexity/short"]["token_probability"], strict=True)
    )
    for long, short in pairs:
        total += long * math.log(long / short)
        if math.log(long) - math.log(short) > gain and math.log(long) > least:
            keys += 1
    return {"information_gain": total / len(pairs), "key_tokens": keys / len(pairs)}


@pytest.mark.parametrize("options", [{}, {"gain": 0.5}, {"gain": 0.1, "least": -0.3}])
def test_against_plain_loops(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_contrast, "_ROWS", 3)
    found = {name: table for name, table in made().items() if name != "cam"}
    gains, keys = scores_of("information_gain", found), scores_of("key_tokens", found, options=options)
    assert len(gains) == len(keys) == len(LENGTHS) and len({*keys.values()}) > 1
    for sample in gains:
        wanted = slow(found, sample, **options)
        assert gains[sample] == pytest.approx(wanted["information_gain"], rel=1e-9)
        assert keys[sample] == pytest.approx(wanted["key_tokens"], rel=1e-12)


def test_probabilities_that_are_rounded_to_nothing_have_their_limits() -> None:
    found = tables_of(long=[[0.0, 0.5], [0.5, 0.5], [0.0, 0.0]], short=[[0.5, 0.5], [0.0, 0.5], [0.0, 0.0]])
    gains, keys = (scores_of(name, found) for name in NAMES)
    assert gains["s0"] == pytest.approx(0.0, abs=1e-40) and gains["s2"] == 0.0
    assert gains["s1"] == pytest.approx(0.5 * (math.log(0.5) + 149 * math.log(2)) / 2)
    assert keys == {"s0": 0.0, "s1": 0.5, "s2": 0.0}


def test_a_response_without_tokens_has_no_score() -> None:
    found = tables_of(long=[[], [0.9], []], short=[[], [0.05], []])
    for name in NAMES:
        scores = scores_of(name, found)
        assert scores["s0"] is scores["s2"] is None and scores["s1"] > 0


def test_of_no_samples_come_no_scores() -> None:
    for name in NAMES:
        assert scores_of(name, tables_of(long=[], short=[])) == {}


@pytest.mark.parametrize("name", NAMES)
def test_other_tokens_and_other_versions_are_refused(name: str) -> None:
    with refused("models.not_homologous", "1.*s0's"):
        scores_of(name, tables_of(long=[[0.5, 0.5]], short=[[0.5]]))
    found = tables_of(long=[[0.5]], short=[[0.5]])
    found["perplexity/long"] = found["perplexity/long"].with_columns(digest=pl.lit("other"))
    with refused("storage.out_of_date", "1.*s0"):
        scores_of(name, found)


def test_a_key_token_is_what_the_benchmark_calls_one() -> None:
    options = method_of("key_tokens").options
    benchmark = LongPplOptions.model_fields
    assert (options.gain, options.least) == (benchmark["gain"].default, benchmark["least"].default)  # pyright: ignore


ACCEPTED = pl.DataFrame({"characters": [9000]})
SEES_ALL = {"short": {"path": "a/short", "rope_theta": 2e6}}
LATE = {"short": {"path": "a/short", "context": "window", "window": 10**6}}
OWN_WINDOW = {"short": {"path": "far reaching", "context": "window"}}


@pytest.mark.parametrize(
    ("selection", "models", "said"),
    [
        ({}, SEES_ALL, "(context: full)"),
        ({}, LATE, "(window: 1000000, scoring.max_length: 65536)"),
        ({}, OWN_WINDOW, "(window: 131072, scoring.max_length: 65536)"),
        ({}, {}, None),
        ({"preset": "paper"}, SEES_ALL, None),
        ({"method": "far_gain"}, SEES_ALL, "(context: full)"),
        ({"method": "far_gain_hmp"}, SEES_ALL, "(context: full)"),
        ({"method": "far_gain_fg"}, SEES_ALL, None),
        ({"method": "information_gain"}, SEES_ALL, "(context: full)"),
        ({"method": "key_tokens"}, LATE, "window"),
        ({"method": "perplexity"}, SEES_ALL, None),
    ],
)
def test_a_theta_a_that_sees_as_much_as_theta_b_is_told(
    tmp_path: Path, selection: dict, models: dict, said: str | None
) -> None:
    (tmp_path / "far reaching").mkdir()
    (tmp_path / "far reaching" / "config.json").write_text('{"max_position_embeddings": 131072}')
    config = configured(models=models, **selection).model_copy(update={"folder": tmp_path})
    found = chosen_methods(config)[config.selection.method].warnings(ACCEPTED)
    assert len(found) == (said is not None)
    if said is not None:
        assert said in found[0] and "Set `context: window` and `window`" in found[0]
