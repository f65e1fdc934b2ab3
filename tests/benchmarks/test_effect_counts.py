"""Hold the comparison of laws in samples and in tokens to a slow twin: cell by cell, pool by pool."""

import math
from typing import Any

import effect_counts
import numpy as np
import pytest
from effect_counts import OFFSETS, UNITS, Law, laws
from scipy.stats import spearmanr

from gateau_dagster.selection.forecast import SLOPE

POOLS = (0.02, 0.05, 0.1, 0.2, 0.45)


def study(slope: float, *, noise: float, seeds: int = 4) -> dict[str, Any]:
    """Gains of `slope` for each doubling of far tokens + 40, in the form of effect.json."""
    rng, cells, runs, verdicts, pools = np.random.default_rng(3), [], [], [], []
    for place, pool in enumerate(POOLS):
        random = {"samples": 10.0, "shown_far": 5.0, "far_tokens": 9.0}
        cells.append({"arm": "random", "pool": pool, "choice": random})
        runs += [[seed, "random", pool, 0.5, 0.9] for seed in range(seeds)]
        for arm in ("mix", "top"):
            amounts = {"samples": 10.0, **dict(zip(UNITS.values(), rng.integers(20, 90, 2).tolist(), strict=True))}
            gains = slope * math.log2((amounts["far_tokens"] + 40) / 49) + noise * rng.normal(size=seeds)
            runs += [[seed, arm, pool, 0.5 + gain, 0.9] for seed, gain in enumerate(gains)]
            gain = {"value": float(gains.mean())}
            cells.append({"arm": arm, "pool": pool, "choice": amounts, "far_gain": gain, "far_nll_gain": gain})
        for seed in range(seeds):
            mismatch, change = {"value": 2.0 - 0.3 * place}, {"value": -0.1 - 0.01 * seed}
            verdicts.append(
                {"seed": seed, "pool": pool, "mismatch": mismatch, "supply": place + 1.0, "far_change": change}
            )
            pools.append({"seed": seed, "pool": pool, "samples": 100, "shown_far": 20 + seed, "far_tokens": 40 + seed})
    return {"cells": cells, "runs": runs, "verdicts": verdicts, "pools": pools}


def slow_value(name: str, amount: float, chance: float) -> list[float]:
    """A quantity by its definition."""
    return {
        "uncorrected": [math.log2(amount + 1) - math.log2(chance + 1)],
        "enrichment": [math.log2(amount / chance)],
        "offset": [math.log2(amount + offset) - math.log2(chance + offset) for offset in OFFSETS],
        "added": [amount - chance],
    }[name]


def slow_distance(found: dict[str, Any], name: str, unit: str, gains: dict[float, float]) -> float:
    """The mean distance of the gains of `mix` to the best line through zero and the other pools."""
    values = dict[float, list[float]]()
    for pool in POOLS:
        ours, other = (
            next(cell["choice"] for cell in found["cells"] if (cell["arm"], cell["pool"]) == (arm, pool))
            for arm in ("mix", "random")
        )
        values[pool] = slow_value(name, ours[UNITS[unit]], other[UNITS[unit]])
    total = 0.0
    for pool in POOLS:
        fits = []
        for place, value in enumerate(values[pool]):
            rest = [(values[other][place], gains[other]) for other in POOLS if other != pool]
            slope = sum(v * g for v, g in rest) / sum(v * v for v, _ in rest)
            fits.append((sum((g - slope * v) ** 2 for v, g in rest), slope * value))
        total += abs(gains[pool] - min(fits)[1])
    return total / len(POOLS)


def law_of(found: list[Law], name: str) -> Law:
    """The law of this name."""
    return next(law for law in found if law.name == name)


def test_a_law_is_held_against_the_pool_that_it_was_not_fitted_on() -> None:
    found = study(0.05, noise=0.03)
    gains = {cell["pool"]: cell["far_gain"]["value"] for cell in found["cells"] if cell["arm"] == "mix"}
    made = laws(found, ["mix"])
    for name in ("uncorrected", "enrichment", "offset", "added"):
        law, slow = law_of(made, name), {unit: slow_distance(found, name, unit, gains) for unit in UNITS}
        assert law.distance == pytest.approx(slow) and law.difference is not None
        value, low, high = law.difference
        assert value == pytest.approx(slow["tokens"] - slow["samples"])
        assert low is not None and high is not None and low < high and low < value + 0.02
    mean = sum(abs(gains[pool] - sum(gains[other] for other in POOLS if other != pool) / 4) for pool in POOLS) / 5
    assert law_of(made, "mean").distance == {"samples": pytest.approx(mean)}
    assert [law.name for law in made][:4] == ["mean", "mismatch", "supply", "expected"]
    # Seeds change the expected doublings by the same amount in every pool, so a law of them is that of the mean gain.
    expected = law_of(made, "expected").distance
    assert expected["samples"] == pytest.approx(mean)
    assert expected["tokens"] == law_of(made, "uncorrected").distance["tokens"]


def test_the_interval_resamples_the_seeds() -> None:
    found = study(0.05, noise=0.03)
    cells = [cell for cell in found["cells"] if cell["arm"] == "mix"]
    drawn = effect_counts._resampled(found, cells)
    of_seed = {
        (seed, pool): far - 0.5 for seed, arm, pool, far, _ in found["runs"] if arm == "mix"
    }  # random recalls 0.5
    for place, pool in enumerate(POOLS):
        some = [of_seed[seed, pool] for seed in range(4)]
        assert drawn[:, place].mean() == pytest.approx(sum(some) / 4, abs=0.003)
        assert drawn[:, place].std() == pytest.approx(float(np.std(some)) / 2, rel=0.1)


def test_the_law_that_made_the_gains_is_exact() -> None:
    made = laws(study(0.05, noise=0.0), ["mix", "top"])
    offset = law_of(made, "offset")
    assert offset.distance["tokens"] == pytest.approx(0, abs=1e-9) and offset.distance["samples"] > 0.001
    assert not offset.order
    assert law_of(made, "added").order["tokens"] == pytest.approx(1)
    assert offset.difference is not None and offset.difference[2] is not None and offset.difference[2] < 0
    assert "mismatch" not in [law.name for law in made], "the quantities are those of mix"
    of_loss = law_of(laws(study(-0.05, noise=0.0), ["mix"], "far_nll_gain"), "offset")
    assert of_loss.distance["tokens"] == pytest.approx(0, abs=1e-9)
    assert of_loss.difference is not None and of_loss.difference[1:] == (None, None)


def test_random_choices_hold_what_the_pool_has_on_average() -> None:
    found = study(0.05, noise=0.0)
    cells = [cell for cell in found["cells"] if cell["arm"] == "mix"]
    for unit, mean in (("samples", 21.5 / 10), ("tokens", 41.5 / 10)):  # of 10 samples out of 100
        assert effect_counts.held_by_chance(found, cells[0], unit) == pytest.approx(mean)
    values = [math.log2((cell["choice"]["far_tokens"] + 1) / (41.5 / 10 + 1)) for cell in cells]
    gains = [cell["far_gain"]["value"] for cell in cells]
    assert law_of(laws(found, ["mix"]), "by_pool").order["tokens"] == pytest.approx(spearmanr(values, gains)[0])


def test_quantities_of_the_product_are_means_over_the_seeds() -> None:
    told = effect_counts.of_product(study(0.05, noise=0.0), 0.1)
    assert told == pytest.approx({"mismatch": 1.4, "supply": 3.0, "expected": (0.1 + 0.015) / SLOPE})
