"""What computing a shard took, as metadata of its materialisation; numbers are plotted on the asset's page."""

from collections.abc import Mapping
from typing import Any

import polars as pl


def effort_metadata(effort: Mapping[str, Any]) -> dict[str, Any]:
    """Of `Stamp.effort`: only what the computation of this shard took, without the rows that were kept.

    Of a pass that served two tables each has its part of the seconds, by FLOPs. Peak memory is torch's allocation on
    CUDA, on the CPU the resident memory of the whole process.
    """
    if not effort:
        return {}
    seconds, flops = effort["seconds"], effort["flops"]
    found: dict[str, Any] = {
        "scoring_seconds": seconds,
        "tokens_scored": effort["tokens"],
        "flops": flops,
        _memory_name(effort): effort["peak_memory"] / 2**20,
        "device": effort["device"],
    }
    if seconds > 0:
        found |= {
            "samples_per_second": effort["samples"] / seconds,
            "tokens_per_second": effort["tokens"] / seconds,
            "flops_per_second": flops / seconds,
        }
        if effort["matrix_product_speed"] is not None:
            found["share_of_matrix_product_peak"] = flops / seconds / effort["matrix_product_speed"]
    planned = effort.get("planned", {}).get("seconds")
    return found | ({} if planned is None else {"planned_seconds": planned})


def _memory_name(effort: Mapping[str, Any]) -> str:
    if effort["device"].startswith("cuda"):
        return "peak_gpu_memory_mib"
    return "peak_process_memory_since_start_mib" if effort["peak_memory_since_start"] else "peak_process_memory_mib"


def statistics(table: pl.DataFrame) -> dict[str, float]:
    """Means of the number columns."""
    found: dict[str, float] = {}
    for name, dtype in table.schema.items():
        mean = table[name].mean() if dtype in (pl.Float64(), pl.Int32()) else None
        if isinstance(mean, float):
            found[f"mean_{name}"] = mean
    return found
