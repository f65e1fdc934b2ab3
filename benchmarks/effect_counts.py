"""Compare laws of the gain over random samples that count far samples with laws that count far tokens.

Everything is read from docs/evidence/figures/effect.json, which effect.py measures: no model runs. A law is
`gain = slope · quantity`, with a quantity that is known before training. It is fitted on all pools but one, and
predicts the gains in that one.

Named before the intervals were computed, and after the mean gains were seen: the product's forecast counts tokens if
they predict better, by more than the interval, both in the product's law (`expected`) and in the best one (`offset`).
`uncorrected` and `by_pool` were added afterwards, to tell where the difference in `expected` comes from.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateau_dagster.selection.forecast import SLOPE
from gateau_dagster.selection.statistics import spearman

UNITS = {"samples": "shown_far", "tokens": "far_tokens"}
"""The counted quantities, and the key of each mean in `choice` of a cell of effect.json."""
OFFSETS = (1, 10, 20, 40, 80, 160, 320)
"""The offsets of effect.LAWS, for samples and for tokens."""
_DRAWS = 2000

Cell = Mapping[str, Any]  # of effect.json: an arm and a pool, means over the seeds


def doublings(amount: float, chance: float, offset: float) -> float:
    """Return log2((amount + offset) / (chance + offset))."""
    return math.log2((amount + offset) / (chance + offset))


# A quantity of an arm's amount and that of the draw of random: one value, or one for each offset.
OF_AMOUNTS: dict[str, Callable[[float, float], list[float]]] = {
    "uncorrected": lambda amount, chance: [doublings(amount, chance, 1)],
    "enrichment": lambda amount, chance: [doublings(amount, chance, 0)],
    "offset": lambda amount, chance: [doublings(amount, chance, offset) for offset in OFFSETS],
    "added": lambda amount, chance: [amount - chance],
}


def of_product(found: Mapping[str, Any], pool: float) -> dict[str, float]:
    """Return the product's quantities for `mix` in a pool, means over the seeds.

    `expected` is the doublings behind its expected change, in samples that are corrected for what the test misses.
    """
    some = [each for each in found["verdicts"] if each["pool"] == pool]
    quantities = {
        "mismatch": [each["mismatch"]["value"] for each in some],
        "supply": [each["supply"] for each in some],
        "expected": [-each["far_change"]["value"] / SLOPE for each in some],
    }
    return {name: float(np.mean(values)) for name, values in quantities.items()}


def held_by_chance(found: Mapping[str, Any], cell: Cell, unit: str) -> float:
    """Return the mean count in random choices of as many samples as a cell's, as the product counts them."""
    some = [each for each in found["pools"] if each["pool"] == cell["pool"]]
    return float(np.mean([cell["choice"]["samples"] * each[UNITS[unit]] / each["samples"] for each in some]))


def held_out(values: np.ndarray, gains: np.ndarray, pools: np.ndarray) -> np.ndarray:
    """Return each gain as the law `slope · value` of the cells of all other pools predicts it: float64 [D, C].

    Args:
        values: float64 [O, C], for each offset; the one of least squared error on the other pools counts.
        gains: measured, float64 [D, C], for each draw.
        pools: of each cell, [C].
    """
    expected = np.zeros_like(gains)
    for pool in np.unique(pools):
        rest = pools != pool
        squares = np.square(values[:, rest]).sum(1)
        slopes = gains[:, rest] @ values[:, rest].T / squares
        best = (np.square(slopes) * squares).argmax(1)  # it leaves the least squared error
        expected[:, ~rest] = slopes[np.arange(len(gains)), best, None] * values[best][:, ~rest]
    return expected


def distances(values: np.ndarray, gains: np.ndarray, pools: np.ndarray) -> np.ndarray:
    """Return the mean distance of gains to their prediction by `held_out`: float64 [D]."""
    return np.abs(gains - held_out(values, gains, pools)).mean(1)


@dataclass(frozen=True, kw_only=True)
class Law:
    """The quality of a quantity in ordering and predicting the gains of cells, in samples and, if known, in tokens.

    order: Spearman's correlation with the gains; none for a quantity with several offsets. distance: see `distances`.
    difference: the distance in tokens less that in samples, with a 95 % interval from resampled seeds; it has no
    interval where the gain of single seeds is not kept.
    """

    name: str
    order: Mapping[str, float]
    distance: Mapping[str, float]
    difference: tuple[float, float | None, float | None] | None


def laws(found: Mapping[str, Any], arms: Sequence[str], gain: str = "far_gain") -> list[Law]:
    """Return the laws for the cells of some arms; first `mean`, which predicts the mean gain of the other pools.

    The product's quantities are those of `mix`, so only `mix` and `mix_tau`, whose choices hardly differ, have them.

    Args:
        found: effect.json.
        arms: without random.
        gain: the gain of a cell, `far_gain` (recall) or `far_nll_gain`.
    """
    cells = [cell for cell in found["cells"] if cell["arm"] in arms]
    random = {cell["pool"]: cell["choice"] for cell in found["cells"] if cell["arm"] == "random"}
    pools = np.array([cell["pool"] for cell in cells])
    gains = np.array([cell[gain]["value"] for cell in cells]) * (-1 if "nll" in gain else 1)
    values = {
        name: {
            unit: np.array([
                quantity(cell["choice"][column], random[cell["pool"]][column]) for cell in cells
            ]).T
            for unit, column in UNITS.items()
        }
        for name, quantity in OF_AMOUNTS.items()
    }  # fmt: skip
    if {*arms} <= {"mix", "mix_tau"}:
        told = [of_product(found, cell["pool"]) for cell in cells]
        product = {name: {"samples": np.array([[each[name] for each in told]])} for name in told[0]}
        product["expected"]["tokens"] = values["uncorrected"]["tokens"]
        product["by_pool"] = {
            unit: np.array([[
                doublings(cell["choice"][column], held_by_chance(found, cell, unit), 1) for cell in cells
            ]])
            for unit, column in UNITS.items()
        }  # fmt: skip
        values = product | values
    values = {"mean": {"samples": np.ones((1, len(cells)))}} | values
    drawn = _resampled(found, cells) if gain == "far_gain" else None
    return [_law(name, units, gains, pools, drawn) for name, units in values.items()]


def _law(
    name: str, units: Mapping[str, np.ndarray], gains: np.ndarray, pools: np.ndarray, drawn: np.ndarray | None
) -> Law:
    orders = {unit: spearman(values[0], gains) for unit, values in units.items() if len(values) == 1}
    apart = {unit: float(distances(values, gains[None], pools)[0]) for unit, values in units.items()}
    difference = None
    if len(units) > 1:
        low = high = None
        if drawn is not None:
            of_draws = np.subtract(*(distances(units[unit], drawn, pools) for unit in ("tokens", "samples")))
            low, high = np.quantile(of_draws, (0.025, 0.975)).tolist()
        difference = (apart["tokens"] - apart["samples"], low, high)
    return Law(
        name=name,
        order={unit: order for unit, order in orders.items() if order is not None},
        distance=apart,
        difference=difference,
    )


def _resampled(found: Mapping[str, Any], cells: Sequence[Cell]) -> np.ndarray:
    """Return the gains in far recall of the cells, means over resampled seeds: float64 [D, C]."""
    recall = {(seed, arm, pool): far for seed, arm, pool, far, _ in found["runs"]}
    seeds = sorted({seed for seed, *_ in recall})
    table = np.array([
        [recall[seed, cell["arm"], cell["pool"]] - recall[seed, "random", cell["pool"]] for cell in cells]
        for seed in seeds
    ])  # fmt: skip
    draws = np.random.default_rng(0).integers(len(seeds), size=(_DRAWS, len(seeds)))
    return table[draws].mean(1)
