"""`cam` of models whose attention cannot be seen: everything but attention and CAS, against the slow way."""

from typing import Any

import pytest

from gateau_dagster.config import ScoringConfig
from gateau_dagster.methods.registry import reads_attention
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.scoring.pair_tables import CAM, THETA_B, cam_table, perplexity_asset
from gateau_dagster.scoring.sample_table import RequestedRow, Running
from tests.error_codes import refused
from tests.methods.configured import configured
from tests.models.test_known_attention import NEXT
from tests.scoring.reference import reference, reference_model
from tests.tiny_models import loaded_model, samples

_LENGTH = 32


def _running() -> Running:
    scoring = ScoringConfig(segment_length=_LENGTH, dtype="float32")
    return Running(max_length=600, scoring=scoring, work=ForwardWork())


@pytest.mark.parametrize(("kind", "options"), [("qwen3_next", NEXT), ("mamba", {})])
def test_rows_are_those_of_the_slow_way_without_attention(kind: str, options: dict[str, Any]) -> None:
    loaded, chosen = loaded_model(kind, **options), [one for one in samples() if len(one.context) < 400]
    table = cam_table(configured(), attention_read=False)
    assert table.shared is not None
    both = {asset: _running() for asset in (perplexity_asset(THETA_B), CAM)}
    asked = [RequestedRow(sample=one, assets=frozenset(both)) for one in chosen]
    twin = reference_model(loaded.model)
    for one, found in zip(chosen, table.shared.score(loaded, asked, both), strict=True):
        want = reference(twin, loaded.tokenizer, one, max_length=600, segment_length=_LENGTH, seen=False)
        row = found[CAM]
        assert isinstance(row, dict) and (row["segment_attention"], row["cas"]) == ([], None)
        assert row["segment_perplexity"] == pytest.approx(want.segment_perplexity, rel=1e-4)
        assert row["far_probability"] == pytest.approx(want.far_probability, rel=1e-3, abs=1e-7)
        assert (row["far_gain"] is None) == (want.far_gain is None)
        assert row["far_gain"] is None or row["far_gain"] == pytest.approx(want.far_gain, rel=1e-3, abs=1e-7)
        perplexity = found[perplexity_asset(THETA_B)]
        assert isinstance(perplexity, dict) and perplexity["perplexity"] == pytest.approx(want.perplexity, rel=1e-4)


def test_what_is_read_is_refused_with_class_and_cure() -> None:
    table = cam_table(configured())
    with refused("models.no_attention", r"Qwen3NextForCausalLM.*selection\.preset"):
        list(table.score(loaded_model("qwen3_next", **NEXT), samples(), _running()))


def test_a_model_that_shows_it_has_it_whatever_is_read() -> None:
    chosen = samples()[:1]
    rows = [
        next(iter(cam_table(configured(), attention_read=read).score(loaded_model("llama"), chosen, _running())))
        for read in (True, False)
    ]
    assert rows[0] == rows[1] and isinstance(rows[0], dict) and rows[0]["cas"] is not None


def _of_other(method: str) -> dict[str, Any]:
    return {"models": {"third": {"path": "a/third"}}, "method": method, "options": {method: {"short": "third"}}}


@pytest.mark.parametrize(
    ("selection", "read"),
    [
        ({}, False),
        ({"preset": "paper"}, True),
        ({"preset": "paper", "method": "hmg"}, False),
        ({"compare": ["cam"], "options": {"cam": {"preset": "official"}}}, True),
        ({"compare": ["gateau_unnormalised"]}, True),
        ({"compare": ["far_gain"]}, False),
        ({"preset": "paper", **_of_other("hmg_non_homologous")}, False),
        ({"preset": "paper", **_of_other("gateau_unextended")}, True),
        ({"segment_lengths": [64]}, False),
        ({"segment_lengths": [64], "preset": "paper"}, True),
    ],
)
def test_who_reads_attention(selection: dict[str, Any], read: bool) -> None:
    assert reads_attention(configured(**selection)) is read
