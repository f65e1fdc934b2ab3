"""Rows of the experiment; variants that differ only in their seed share one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateau_dagster.config.variants import BASE, CHECKPOINT
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.registry import scored_benchmarks
from gateau_dagster.readable import nearest_name

if TYPE_CHECKING:
    from gateau_dagster.config import Config


@dataclass(frozen=True, kw_only=True)
class Line:
    """A model of the experiment, with one row of the table under each benchmark.

    variants: names of its variants, which differ only in their seed. trained: whether another seed would have given
    another model. series: the preset or method that selected its samples, the same for any number of them; empty
    without a selection.
    """

    name: str
    variants: tuple[str, ...]
    trained: bool = True
    series: str = ""


def lines_of(config: Config) -> list[Line]:
    """Return the rows, in order of the variants; a variant without others of its kind has its own name."""
    cells: dict[str, list] = {}
    for variant in config.variant_set.values():
        cells.setdefault(variant.cell, []).append(variant)
    return [
        Line(
            name=cell if len(variants) > 1 else variants[0].name,
            variants=tuple(variant.name for variant in variants),
            trained=variants[0].trained or variants[0].kind == CHECKPOINT,
            series=(variants[0].preset or variants[0].method or "") if variants[0].kind == "selected" else "",
        )
        for cell, variants in cells.items()
    ]


def reference_of(config: Config) -> str:
    """Return the row that others are compared with: that of `evaluation.reference`, or the model before training."""
    return row_of(config, config.evaluation.reference or BASE)


def row_of(config: Config, name: str) -> str:
    """Return the row of a name, which is a row's or a variant's; the name itself where there is none."""
    return next((line.name for line in lines_of(config) if name == line.name or name in line.variants), name)


def check_experiment(config: Config) -> None:
    """Raise GateauError for a reference that is no variant, and for a gate whose variant or benchmark is unknown."""
    known, gate = [line.name for line in lines_of(config)], config.evaluation.gate
    named = {"reference": config.evaluation.reference, "gate.variant": None if gate is None else gate.variant}
    for place, name in named.items():
        if name is not None and row_of(config, name) not in known:
            raise GateauError(f"evaluation.{place}: no variant {name}; {nearest_name(name, known)}")
    scored = list(scored_benchmarks(config))
    if gate is not None and gate.benchmark not in scored:
        raise GateauError(
            f"evaluation.gate.benchmark: {gate.benchmark} is not among the benchmarks that run and give a value to "
            f"each question: {', '.join(scored) or 'none'}. Name one of these, or add it to evaluation.benchmarks."
        )
