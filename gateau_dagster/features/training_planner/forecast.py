"""Show the memory of a plan's training runs, and refuse those that do not fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import psutil
from rich.console import Console

from gateau_dagster.cli.display import as_line, left_table
from gateau_dagster.cli.plan import PlanPart
from gateau_dagster.features.training_planner.training_memory import (
    TrainingMemory,
    check_training_memory,
    gib,
    planned_memory,
)
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.state import State
from gateau_dagster.pipeline.work_forecast import AssumedDevices
from gateau_dagster.training.memory_plan import PARTS


def check_start(state: State, plan: Plan | None = None) -> None:
    """Refuse training runs that do not fit into their GPUs; see `check_training_memory`."""
    check_training_memory(state, plan)


def plan_parts(state: State, plan: Plan, assumed: AssumedDevices) -> Iterator[PlanPart]:
    """Yield the memory of the training runs; `memory` for programs: the record of each."""
    del assumed
    memory = cache(lambda: planned_memory(state, plan))
    yield PlanPart(
        place=40,
        show=lambda out: show_memory(out, memory()),
        record=lambda: {"memory": [memory_record(each) for each in memory()]},
    )


def show_memory(out: Console, planned: Sequence[TrainingMemory]) -> None:
    """Print a line per asset with training runs; with a table by part, and with cures, for one that does not fit."""
    if planned:
        out.print()
    for each in planned:
        mark = "" if each.fits else "[yellow]![/yellow] "
        out.print(f"{mark}Memory of {as_line(f'{each.asset}: {_memory_line(each)}')}", soft_wrap=False)
        if each.fits or each.memory is None:
            continue
        table = left_table("part", right=("GPU", "host, each rank"))
        for part in PARTS:
            sizes = (each.memory.device[part], each.memory.host.get(part, 0))
            if any(sizes):
                table.add_row(part, *(gib(size) if size else "" for size in sizes))
        table.add_row("together", gib(each.memory.device_bytes), gib(each.memory.host_bytes), style="bold")
        out.print(table)
        if each.cures and not each.impossible:  # else the error names them
            out.print("It has more room with one of these in `training`:")
            for cure in each.cures:
                out.print(f"  {as_line(cure)}", soft_wrap=False)


def _memory_line(found: TrainingMemory) -> str:
    if found.memory is None:
        return f"not known: {found.unknown}."
    tokens, needed = f"in a pass of {found.tokens:,} tokens", gib(found.memory.device_bytes)
    if found.on_cpu:
        ranks = f" for each of {found.ranks} ranks" if found.ranks > 1 else ""
        return (
            f"{needed}{ranks} {tokens}, of the {gib(psutil.virtual_memory().total)} of this machine, which has no GPU. "
            "For a GPU elsewhere, give training.gpu_memory."
        )
    levers = ["offload_activations: on"] if found.levers.offload else []
    if found.levers.tile_tokens is not None:
        levers.append(f"tiled_mlp: {found.levers.tile_tokens}")
    used = f", with {' and '.join(levers)}" if levers else ""
    host = f" Host: {gib(found.memory.host_bytes)} for each rank." if found.memory.host_bytes else ""
    about = " Its layers are only approximated, so it may take more." if found.approximate else ""
    if found.gpu_bytes is None:
        cards = ", ".join(
            f"{gib(card)} {f'{longest:,}' if longest else 'none'}" for card, longest in found.longest.items()
        )
        return f"{needed} of a GPU {tokens}{used}.{host} The longest pass that fits, in tokens: {cards}.{about}"
    fitting = found.longest[found.gpu_bytes]
    most = f" The longest pass that fits: {fitting:,} tokens." if fitting else ""
    return f"{needed} of a GPU {tokens}{used}; it has {gib(found.gpu_bytes)}.{host}{most}{about}"


def memory_record(found: TrainingMemory) -> dict[str, Any]:
    """Return the memory of a training run for programs: the fields of TrainingMemory, and whether it fits."""
    return {
        **asdict(found),
        "longest": {str(card): tokens for card, tokens in found.longest.items()},
        "device_bytes": None if found.memory is None else found.memory.device_bytes,
        "host_bytes": None if found.memory is None else found.memory.host_bytes,
        "fits": found.fits,
        "refused": found.impossible,
    }
