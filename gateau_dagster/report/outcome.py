"""What the fine-tuning run and the evaluation came to, as figures and plain sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import polars as pl

from gateau_dagster.readable import number, percent, plural
from gateau_dagster.report.plots.training import curve


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """The run in figures; a figure that was never logged is None."""

    steps: int
    first_loss: float | None
    last_loss: float | None
    largest_grad_norm: float | None
    tokens_per_second: float | None
    not_finite: int


def training_facts(log: Sequence[Mapping[str, Any]]) -> TrainingFacts:
    """Figures of a training log; `not_finite` counts logged losses that are NaN or infinite."""
    losses = curve(log, "loss")[1]
    norms = curve(log, "grad_norm")[1]
    speeds = curve(log, "tokens_per_second")[1]
    bad = sum(1 for entry in log if entry.get("loss") is not None and not math.isfinite(float(entry["loss"])))
    return TrainingFacts(
        steps=int(max((entry["step"] for entry in log), default=0)),
        first_loss=losses[0] if losses else None,
        last_loss=losses[-1] if losses else None,
        largest_grad_norm=max(norms, default=None),
        tokens_per_second=median(speeds) if speeds else None,
        not_finite=bad,
    )


def heldout_sentence(heldout: pl.DataFrame) -> str:
    """The 'all' row of HELDOUT in words."""
    rows = {row["model"]: row for row in heldout.filter(pl.col("bucket") == "all").iter_rows(named=True)}
    if set(rows) != {"base", "checkpoint"}:
        return "The two models cannot be compared: one of them has no held-out score."
    base, tuned = rows["base"]["perplexity"], rows["checkpoint"]["perplexity"]
    change = tuned / base - 1
    word = "lower than" if change < 0 else "higher than" if change > 0 else "equal to"
    size = "" if change == 0 else f"{percent(abs(change))} "
    return (
        f"Over {plural(rows['base']['samples'], 'sample')} that were not trained on, the checkpoint's perplexity of "
        f"the response, {number(tuned)}, is {size}{word} its base model's, {number(base)}."
    )


def needle_sentence(needle: pl.DataFrame) -> str:
    """Mean accuracy over the grid and NLL of the answer, model by model, in words.

    The NLL tells models apart that find nothing, or everything.
    """
    columns = pl.col("accuracy").mean(), pl.col("answer_nll").mean()
    means = {name: rest for name, *rest in needle.group_by("model").agg(*columns).iter_rows()}
    shown = [name for name in ("base", "checkpoint") if name in means]
    cells = needle.select("length", "depth").n_unique()
    found = ", ".join(f"{name} {percent(means[name][0])}" for name in shown)
    nll = ", ".join(f"{name} {means[name][1]:.2f}" for name in shown)
    return (
        f"Share of the hidden facts found, mean over {plural(cells, 'cell')} of the grid: {found}. "
        f"Mean NLL of the answer, in nats per token: {nll}; lower is better."
    )
