"""What the fingerprint of `combined_scores` says of alpha."""

from typing import Any

import pytest

from gateau_dagster.pipeline.selection_nodes import selection_nodes
from tests.methods.configured import configured


def setting(**selection: Any) -> object:
    node = next(node for node in selection_nodes(configured(**selection)) if node.asset == "combined_scores")
    return node.settings["selection.alpha"]


@pytest.mark.parametrize(("preset", "default"), [("paper", 0.8), ("official", 0.8), ("robust", 0.5)])
def test_a_default_is_resolved_and_is_not_the_same_number_given(preset: str, default: float) -> None:
    """A given alpha is that of the other presets' columns, too."""
    assert setting(preset=preset) == f"{default} by default"
    assert setting(preset=preset, alpha=default) == default
