"""Every method's scores of the labelled benchmark set, from the registry."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from common_case import AnyCase
from common_selection import Tables

from gateau_dagster.config.selection import PRESETS
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import all_methods, chosen_methods, sample_tables

# The papers' parameters are for contexts of 32k tokens, these have some 1,000: one variant each is scaled to them. The
# pairs are 15 % of those of some 30 segments, as the paper's are of those of 256; the window is theta_B's.
SCALED: dict[str, dict[str, Any]] = {
    "ladm": {"span_length": 16},
    "delta_perplexity": {"segment_length": 32, "pairs": 65, "window": 2048},
}
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
    found += [(f"{name}[scaled]", name, options) for name, options in SCALED.items() if name in all_methods()]
    return found


def asked(case: AnyCase, method: str, options: Mapping[str, Any]) -> Method:
    """The method under the case's configuration; ValueError, with the method's own reason, when that lacks a part."""
    return chosen_methods(case.config(method, options))[method]


def labelled(case: AnyCase, label: str) -> Method:
    """The candidate of this label; ValueError as `asked`, and for another label."""
    known = {each: (name, options) for each, name, options in candidates()}
    if label not in known:
        raise ValueError(f"no method {label!r}: one of {', '.join(known)}")
    return asked(case, *known[label])


def method_scores(known: Tables, method: Method) -> np.ndarray:
    """The method's score of each sample of `known.records`, in their order; -inf where it has none."""
    known.add(sample_tables(method.config))
    found = method.scores({asset: known[asset].select(columns) for asset, columns in method.reads().items()})
    by_id = dict(zip(found["sample_id"].to_list(), found["score"].to_list(), strict=True))
    scores = [by_id.get(record["id"]) for record in known.records]
    return np.array([-np.inf if score is None else score for score in scores], dtype=np.float64)
