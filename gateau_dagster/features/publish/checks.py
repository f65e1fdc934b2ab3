"""Warn before a run of an upload that is going to fail."""

from collections.abc import Iterator

from gateau_dagster.features.publish.config import SECTION
from gateau_dagster.features.publish.hub import has_token
from gateau_dagster.pipeline.state import State


def warnings(state: State) -> Iterator[str]:
    """Warn of a missing token, unless the comparison with the hub has named it."""
    if SECTION.of(state.config) is not None and not has_token() and not state.on_hub[1]:
        yield "publish: HF_TOKEN is not set. An upload needs it, and ends without it; checks of the data do not."
