"""What two models give the same tokens; what is told where both see the same text."""

import polars as pl
import pytest

from gateau_dagster.methods.registry import chosen_methods
from tests.methods.configured import configured

ACCEPTED = pl.DataFrame({"characters": [9000]})
SEES_ALL = {"short": {"path": "a/short", "rope_theta": 2e6}}
LATE = {"short": {"path": "a/short", "context": "window", "window": 10**6}}


@pytest.mark.parametrize(
    ("selection", "models", "said"),
    [
        ({}, SEES_ALL, "(context: full)"),
        ({}, LATE, "(window: 1000000, scoring.max_length: 65536)"),
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
def test_a_theta_a_that_sees_as_much_as_theta_b_is_told(selection: dict, models: dict, said: str | None) -> None:
    config = configured(models=models, **selection)
    found = chosen_methods(config)[config.selection.method].warnings(config, ACCEPTED)
    assert len(found) == (said is not None)
    if said is not None:
        assert said in found[0] and "Set `context: window` and `window`" in found[0]
