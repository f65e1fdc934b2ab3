"""Finished training runs: kept one a line, and as a table of recalls with their differences to random choice."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Run = dict[str, Any]  # seed, method, samples, need_far, recall {far, near}, seconds
RECALLS = ("far", "near")


Key = tuple[int, str]  # seed, method


def finished(file: Path, wanted: Mapping[Key, Mapping[str, Any]]) -> dict[Key, Run]:
    """The wanted runs that stand in the file with just these settings; a line cut short does not count."""
    found = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        key = entry["run"]["seed"], entry["run"]["method"]
        if key in wanted and entry["settings"] == wanted[key]:
            found[key] = entry["run"]
    return found


def add(file: Path, settings: Mapping[str, Any], run: Run) -> None:
    """One line more."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps({"settings": dict(settings), "run": run}) + "\n")


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean, mean ± t(0.975, n-1)·s/√n; needs two values.

    A few seeds are too few to resample: of three values the bootstrap knows ten means, and its interval is too narrow.
    """
    from scipy.stats import t  # slow to import

    array = np.array(values, dtype=np.float64)
    assert array.size >= 2
    half = float(t.ppf(0.975, array.size - 1)) * array.std(ddof=1) / np.sqrt(array.size)
    return float(array.mean() - half), float(array.mean() + half)


def spread(values: Sequence[float]) -> str:
    """`0.612 [0.580, 0.640]`: mean, smallest, largest."""
    return f"{np.mean(values):.3f} [{min(values):.3f}, {max(values):.3f}]"


def gain(values: Sequence[float]) -> str:
    """`+0.102 (-0.010 to +0.214)`: mean and `t_interval`, which one value does not have."""
    if len(values) < 2:
        return "".join(f"{value:+.3f} (one seed)" for value in values) or "-"
    low, high = t_interval(values)
    return f"{np.mean(values):+.3f} ({low:+.3f} to {high:+.3f})"


def differences(runs: Sequence[Run], method: str, baseline: str, recall: str) -> list[float]:
    """Recall of a method minus that of the baseline, seed by seed, of the seeds that have both."""
    by_seed = {each["seed"]: each["recall"][recall] for each in runs if each["method"] == baseline}
    some = [each for each in runs if each["method"] == method and each["seed"] in by_seed]
    return [each["recall"][recall] - by_seed[each["seed"]] for each in some]


HEADER = ["trained on", "seeds", "samples", "need far", "far facts", "near facts", "far - random's", "near - random's"]


def rows_of(runs: Sequence[Run], baseline: str = "random") -> list[list[str]]:
    """A line a method under HEADER, the best far recall first."""
    by_method: dict[str, list[Run]] = {}
    for each in runs:
        by_method.setdefault(each["method"], []).append(each)
    best = sorted(by_method, key=lambda method: -np.mean([each["recall"]["far"] for each in by_method[method]]))
    rows = []
    for method in best:
        some = by_method[method]
        row = [method, str(len(some)), str(some[0]["samples"]), f"{np.mean([each['need_far'] for each in some]):.2f}"]
        row += [spread([each["recall"][recall] for each in some]) for recall in RECALLS]
        row += ["-" if method == baseline else gain(differences(runs, method, baseline, each)) for each in RECALLS]
        rows.append(row)
    return rows
