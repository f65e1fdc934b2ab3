"""What two models give the same tokens; what is told where both see the same text."""

from pathlib import Path

import polars as pl
import pytest

from gateau_dagster.methods.registry import chosen_methods
from tests.methods.configured import configured

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
