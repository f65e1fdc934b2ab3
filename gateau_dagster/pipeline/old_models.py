"""Models of the experiment that no variant is or is to be any more: each is as large as the model that it began as."""

from __future__ import annotations

import re

from gateau_dagster.errors import MissingUpstreamError
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.variant_assets import CHECKPOINTS, TRAINED
from gateau_dagster.storage.documents import remove_folder

_FINGERPRINT = re.compile(r"[0-9a-f]{16,}")


def remove_old_models(state: State) -> list[str]:
    """Removes them, and names them. Those stay that a variant's table refers to, or that it is to become.

    So a model outlives the edit that replaced it until others are trained: an edit that is taken back finds it again.

    Raises:
        GateauError, TransientError: a folder cannot be removed.
    """
    stamps = state.store.stamps((CHECKPOINTS, name) for name in state.config.variant_set)
    kept = {stamp.fingerprint for stamp in stamps.values() if stamp is not None}
    for name in state.config.variant_set:
        try:
            kept.add(state.wanted_stamp(CHECKPOINTS, name).fingerprint)
        except MissingUpstreamError:  # what it becomes is not known before its mix is made
            continue
    names = (name for name in state.store.files.names(TRAINED) if _FINGERPRINT.fullmatch(name))
    removed = [name for name in names if name not in kept]
    for name in removed:
        remove_folder(state.store, f"{TRAINED}/{name}")
    return removed
