"""Every method's scores of the labelled benchmark set, from the registry."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from common_selection import Tables

from gateau_dagster.config import Config
from gateau_dagster.config.selection import PRESETS
from gateau_dagster.methods.registry import ChosenMethod, all_methods, chosen_methods, sample_tables

SCALED: dict[str, dict[str, Any]] = {"ladm": {"span_length": 16}}
# Entries of Case.config in the place of the pair.
OPTIONS: dict[str, dict[str, Any]] = {
    "gateau_unextended": {"short": "unextended"},
    "hmg_non_homologous": {"short": "stranger"},
    "gateau_in_context": {"short": "shown_short", "long": "shown_long"},
}
PRESET_METHODS = ("gateau", "hmg", "cam")  # shown under every preset


def candidates() -> list[tuple[str, str, dict[str, Any]]]:
    """Label, method and options of everything the registry offers; GATEAU's methods under every preset."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for name in all_methods():
        if name in PRESET_METHODS:
            found += [(f"{name}[{preset}]", name, {"preset": preset}) for preset in PRESETS]
        else:
            found.append((name, name, OPTIONS.get(name, {})))
    # The papers' parameters are for contexts of 32k tokens; these are short, so one variant is scaled to them.
    found += [(f"{name}[scaled]", name, options) for name, options in SCALED.items() if name in all_methods()]
    return found


def method_scores(known: Tables, method: str, options: Mapping[str, Any]) -> np.ndarray:
    """The method's score of each sample of `known.records`, in their order; -inf where it has none.

    ValueError, with the method's own reason, when this configuration lacks what it needs.
    """
    config = known.case.config(method, options)
    chosen = chosen_methods(config)[method]
    known.add(sample_tables(config))
    found = chosen.score(_whole(known, chosen, config), config)
    by_id = dict(zip(found["sample_id"].to_list(), found["score"].to_list(), strict=True))
    scores = [by_id.get(record["id"]) for record in known.records]
    return np.array([-np.inf if score is None else score for score in scores], dtype=np.float64)


def _whole(known: Tables, chosen: ChosenMethod, config: Config) -> dict[str, pl.DataFrame]:
    return {asset: known[asset].select(columns) for asset, columns in chosen.reads(config).items()}
