"""Tables of further segment lengths against `cam` made with that length, and what is refused."""

import pytest

from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.models.context_attention import require_attention_interface
from gateau_dagster.models.loaded import ForwardWork, Meter
from gateau_dagster.scoring.pair_tables import cam_at_tables, further_lengths
from gateau_dagster.scoring.sample_table import Running
from gateau_dagster.scoring.scorer import Request, score_samples
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, samples
from tests.methods.configured import configured
from tests.scoring.builders import scoring

LENGTH = 20
EMPTY = Sample(sample_id="empty", source="test", context="some context", instruction="say", response="")


@pytest.mark.parametrize(("preset", "columns"), [("paper", ["segments", "cas", "far_gain"]), ("robust", ["far_gain"])])
def test_a_further_length_has_the_figures_of_cam_with_that_length(preset: str, columns: list[str]) -> None:
    loaded, chosen = loaded_model("llama"), [*samples(), EMPTY]
    (table,) = cam_at_tables(configured(segment_lengths=[LENGTH], preset=preset))
    running = Running(max_length=300, scoring=scoring(segment_length=64), work=ForwardWork(), visible_tokens=120)
    requests = [Request(sample=one, perplexity=True, cam=True) for one in chosen]
    configured_so = scoring(segment_length=LENGTH)
    wanted = score_samples(loaded, requests, max_length=300, scoring=configured_so, meter=Meter(), visible_tokens=120)
    for row, outcome in zip(table.score(loaded, chosen, running), wanted, strict=True):
        if isinstance(row, Reject):
            assert row == outcome.cam
            continue
        assert [column.name for column in table.columns] == list(row)
        assert {"sample_id", "digest", *columns} <= {*row}
        # Other prompts share the batches, which changes rounding only.
        for name, value in row.items():
            right = getattr(outcome.cam, name)
            assert value == (pytest.approx(right, rel=1e-4, abs=1e-6) if isinstance(right, float) else right), name
    assert running.work.tokens > 0


def test_robust_does_not_look_at_the_attention() -> None:
    """Mamba has none: its segments can still be read."""
    loaded, running = loaded_model("mamba"), Running(max_length=300, scoring=scoring(), work=ForwardWork())
    with refused("models.no_attention"):
        require_attention_interface(loaded)
    (table,) = cam_at_tables(configured(segment_lengths=[LENGTH], preset="robust"))
    rows = [row for row in table.score(loaded, samples()[:1], running) if not isinstance(row, Reject)]
    assert len(rows) == 1 and rows[0]["segments"] > 1
    (table,) = cam_at_tables(configured(segment_lengths=[LENGTH], preset="official"))
    with refused("models.no_attention"):
        list(table.score(loaded, samples()[:1], running))


def test_each_length_but_the_configured_one_has_a_table() -> None:
    config = configured(segment_lengths=[256, 128, 64])
    assert further_lengths(config) == [64, 256], "scoring.segment_length, 128, has `cam`"
    assert [*sample_tables(config)] == ["cam_at/64", "cam_at/256"]
    assert {table.model for table in sample_tables(config).values()} == {"long"}
    assert not sample_tables(configured(segment_lengths=[128])) and not sample_tables(configured())


def test_another_preset_needs_other_columns() -> None:
    """Rows of one are never kept for the other."""
    one, other = (
        sample_tables(configured(segment_lengths=[64], preset=preset))["cam_at/64"].settings
        for preset in ("robust", "paper")
    )
    assert one != other
    same = sample_tables(configured(segment_lengths=[64], preset="official"))["cam_at/64"].settings
    assert same == other
