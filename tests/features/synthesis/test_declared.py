"""A field of `synthesis` changes the tables that it decides, and no others."""

from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import Config
from gateau_dagster.features.synthesis.config import SYNTHETIC_SAMPLES
from gateau_dagster.pipeline.declared import partition_sets, pipeline_of
from gateau_dagster.pipeline.plan import make_plan
from tests.pipeline.configured import all_fields, configured, resolved_assets, stale, versions

SAMPLES = {SYNTHETIC_SAMPLES, "report"}
CHECKED = {"synthetic/checks", *SAMPLES}
CONTEXTS = {"synthetic/contexts", *CHECKED}
QUESTIONS = {"synthetic/questions", *CONTEXTS}
PASSAGES = {"synthetic/passages", *QUESTIONS}
SHOWN = {"report"}
GENERATOR = {"base_url": "http://x/v1", "model": "m", "prices": {"prompt": 1.0, "reply": 1.0}}
GIVEN: dict[str, Any] = {"documents": "books/*.txt", "count": 8, "shards": 2, "generator": GENERATOR}
MADE = {"path": "homologous:short", "homologous": {"texts": "books", "length": 512, "tokens_per_step": 65_536}}
# Of the judge too, a changed sampling or name asks for other replies. How the server is reached changes nothing.
FIELDS: dict[str, tuple[Any, set[str]]] = {
    "documents": ("other.txt", SHOWN),
    "text_field": ("body", SHOWN),  # the texts count, by shard
    "verify": ("content", set()),
    "shards": (3, PASSAGES),
    "preset": ("prolong", PASSAGES),
    "count": (10, PASSAGES),
    "lengths": ({4096: 1.0}, PASSAGES),
    "kinds": ({"compare": 1.0}, PASSAGES),
    "passage_words": (50, PASSAGES),
    "seed": (1, PASSAGES),
    "generator.base_url": ("http://y/v1", set()),
    "generator.model": ("n", QUESTIONS),
    "generator.key": ("OTHER_KEY", set()),
    "generator.concurrency": (2, set()),
    "generator.retries": (0, set()),
    "generator.timeout": (5.0, set()),
    "generator.token_limit": (None, set()),
    "generator.temperature": (0.1, QUESTIONS),
    "generator.extra_body": ({"top_k": 1}, QUESTIONS),
    "generator.top_p": (0.5, QUESTIONS),
    "generator.seed": (1, QUESTIONS),
    "generator.prices.prompt": (2.0, SHOWN),
    "generator.prices.reply": (2.0, SHOWN),
    "generator.currency": ("EUR", SHOWN),
    "generator.budget.requests": (5, SHOWN),
    "generator.budget.money": (5.0, SHOWN),
    "generator.max_tokens": (64, QUESTIONS),
    "generator.window": (2048, QUESTIONS),
    "generator.opening": ("\nQ:", QUESTIONS),
    "checks.closed_book": (0.3, CHECKED),
    "checks.near_only": (0.3, CHECKED),
    "checks.near_tokens": (9, CHECKED),
    "checks.needed": (0.3, CHECKED),
    "checks.robust": (0.3, CHECKED),
    "checks.agreement": (None, CHECKED),
    "checks.ask_without_context": (True, CHECKED),
}


def test_every_field_has_a_line_here() -> None:
    known = {field.removeprefix("synthesis.") for field in all_fields(Config) if field.startswith("synthesis.")}
    assert known == {*FIELDS}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field(field: str, tmp_path: Path) -> None:
    value, expected = FIELDS[field]
    base, changed = (
        versions(configured(tmp_path, **{f"synthesis.{name}": each for name, each in given.items()}))
        for given in (GIVEN, with_field(field, value))
    )
    assert stale(base, changed) == expected


def with_field(field: str, value: Any) -> dict[str, Any]:
    first, *others = field.split(".")
    if not others:
        return {**GIVEN, first: value}
    inner = dict(GIVEN.get(first, {}))
    for name in others[:-1]:
        inner[name] = dict(inner.get(name, {}))
        inner[name][others[-1]] = value
    if len(others) == 1:
        inner[others[-1]] = value
    return {**GIVEN, first: inner}


def test_without_the_section_there_is_no_such_asset(tmp_path: Path) -> None:
    assert not [key for key in pipeline_of(configured(tmp_path)).by_key if "synthetic" in key]
    assert "synthesis" not in configured(tmp_path).model_dump(mode="json")


def test_other_weights_of_theta_b_check_again(tmp_path: Path) -> None:
    config = configured(tmp_path, synthesis=GIVEN)
    models = {"short": "x", "long": "y"}
    found = stale(versions(config, models), versions(config, {**models, "long": "z"}))
    assert found >= CONTEXTS and "synthetic/questions" not in found


def test_a_theta_b_that_is_made_comes_before_what_it_reads(tmp_path: Path) -> None:
    config = configured(tmp_path, **{"models.long": MADE}, synthesis=GIVEN)
    assets = [*resolved_assets(config).values()]
    plan = make_plan(assets, partition_sets(config), {"0": "i", "1": "i"}, {})
    planned = [work.asset for work in plan.work]
    assert planned.index("homologous_model/long") < planned.index("synthetic/contexts")
    of_long = {name for name in CONTEXTS - SAMPLES if "homologous_model/long" in pipeline_of(config).by_key[name].reads}
    assert of_long == {"synthetic/contexts", "synthetic/checks"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "n"), ("temperature", 0.5), ("top_p", 0.5), ("seed", 1), ("extra_body", {"top_k": 1})],
)
def test_the_judge_that_compares_answers_counts_for_the_checks(field: str, value: Any, tmp_path: Path) -> None:
    judge = {"base_url": "http://x/v1", "model": "m"}
    for agreement, expected in (("judge", {"synthetic/checks", SYNTHETIC_SAMPLES}), ("exact", set[str]())):
        given = {**GIVEN, "checks": {"agreement": agreement}}
        base, changed = (
            versions(configured(tmp_path, **{"evaluation.judge": each}, synthesis=given))
            for each in (judge, {**judge, field: value})
        )
        assert {name for name in stale(base, changed) if "synthetic" in name} == expected


def test_the_context_of_theta_b_counts_for_the_checks(tmp_path: Path) -> None:
    one, other = (
        versions(configured(tmp_path, **{"models.long.context": context}, synthesis=GIVEN))
        for context in ("full", "window")
    )
    assert {name for name in stale(one, other) if "synthetic" in name} == {"synthetic/checks", SYNTHETIC_SAMPLES}
