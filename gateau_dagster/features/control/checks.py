"""Say how far the ranking can be trusted on this data."""

from gateau_dagster.features.control.feature import CONTROL, has_control
from gateau_dagster.features.control.result import current_result
from gateau_dagster.methods.registry import GATEAU
from gateau_dagster.pipeline.state import State


def trusted(state: State) -> list[tuple[str, str]]:
    """Return the control as a line of the trust panel, or how to get one where nothing else measures the ranking."""
    config, found = state.config, current_result(state)
    if found is not None:
        return [("Control", found.sentence)]
    if has_control(config) or not config.has_pair or config.selection.method != GATEAU or config.selection.ground_truth:
        return []
    return [("Control", f"The ranking was not measured: `selection.evidence: {CONTROL}` reads 30 samples for it.")]
