"""Test the words for a selection and its forecast, and the record of a forecast."""

import json
from typing import Any

import pytest

from gateau_dagster.config.selection import RuleConfig, SelectionConfig
from gateau_dagster.selection.forecast import VERDICTS, Forecast, forecast
from gateau_dagster.selection.wording import chosen_by, forecast_lines, forecast_record, ranked_by, short_lines
from tests.features.report.builders import NOT_A_NUMBER
from tests.selection.test_forecast import pool, probabilities, token_sums


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        ({}, "fraction (10 %)"),
        ({"fraction": 0.325}, "fraction (32.5 %)"),
        ({"count": 4300, "per_document": 2}, "count (4,300), at most 2 of a document"),
        ({"rule": "per_source_tokens", "budget": 7}, "a budget of 7 tokens, the same percentage of every source"),
    ],
)
def test_the_rule(options: dict[str, Any], phrase: str) -> None:
    assert chosen_by(SelectionConfig(**options)) == phrase


def test_the_rule_that_auto_took_is_named() -> None:
    auto = SelectionConfig(rule="auto", budget=500, per_document=2)
    assert chosen_by(auto) == "a budget of 500 tokens, as the forecast decides, at most 2 of a document"
    taken = "a budget of 500 tokens, drawn at random (rule clean, which auto took), at most 2 of a document"
    assert chosen_by(auto, "clean") == taken
    assert chosen_by(auto, "clean", far=0.25) == f"{taken}; 25 % of the chosen samples depend on far text"
    assert chosen_by(SelectionConfig(), "top") == chosen_by(SelectionConfig())


def test_the_preset_is_named_where_it_counts() -> None:
    assert ranked_by(SelectionConfig(preset="paper")) == "Method gateau, preset paper, α = 0.8"
    assert ranked_by(SelectionConfig(alpha=0.25)) == "Method gateau, preset robust, α = 0.25"
    assert ranked_by(SelectionConfig(method="ladm")) == "Method ladm"


def told(far: int = 40, count: int = 100) -> Forecast:
    return forecast(pool(1000, far), RuleConfig(count=count), token_sums(*probabilities(30)))


def test_every_line_is_a_sentence_with_numbers() -> None:
    for found in (told(), told(0), told(1000)):
        lines = dict(forecast_lines(found))
        assert [*lines] == ["Far text", "Use", "Far deficit", "Far samples", "Coverage", "Expected", "Verdict"]
        assert all(text.endswith(".") and not NOT_A_NUMBER.search(text) for text in lines.values())
        assert lines["Verdict"].startswith(VERDICTS[found.verdict]) and VERDICTS[found.verdict] in short_lines(found)[0]


def test_a_known_share_has_no_interval() -> None:
    rule, samples = RuleConfig(count=100), pool(1000, 40, sources=4)
    found = forecast(samples, rule, token_sums(*probabilities(30)), ground_truth=["source 1"])
    lines = dict(forecast_lines(found))
    assert (
        "25.0\u00a0% need it, by selection.ground_truth" in lines["Far text"] and "corrected" not in lines["Far text"]
    )
    assert lines["Use"].endswith("Mismatch with the pool: 0.21 bits.")


def test_the_record_is_json() -> None:
    found = told(0)
    record = json.loads(json.dumps(forecast_record(found), allow_nan=False))
    assert record["mismatch"]["value"] is None and record["samples"] == 1000 and record["verdict"] == found.verdict
