"""What the parts of a GPU run say: a table, and each figure beside its target."""

from collections.abc import Mapping
from typing import Any

from common_measure import verdict
from gpu_measure import Settings

PASS_TARGET, SEGMENT_TARGET = 0.5, 0.4  # share of the measured bf16 matrix-product peak
MEMORY_TARGET = 80e9  # bytes: a GPU of 80 GB
FP32_TARGET, BF16_TARGET = 1e-4, 1e-2  # relative

Results = Mapping[str, Mapping[str, Any]]


def rows_of(results: Results) -> list[list[object]]:
    """One row a pass that was measured or failed."""
    return [_row(name, found, _peak(results)) for name, found in results.items() if _is_shown(found)]


def _is_shown(found: Mapping[str, Any]) -> bool:
    return "flops" in found or "error" in found or "skipped" in found


def _row(name: str, found: Mapping[str, Any], peak: float | None) -> list[object]:
    if "flops" not in found:
        return [name, "failed" if "error" in found else "no time", "", "", "", ""]
    rate = found["flops"] / found["best_seconds"]
    return [
        name,
        f"{found['best_seconds']:.3f}",
        f"{found['tokens'] / found['best_seconds']:.0f}",
        f"{rate / 1e12:.3g}",
        "" if peak is None else f"{rate / peak:.0%}",
        f"{found['total_peak_bytes'] / 2**30:.1f}",
    ]


def _peak(results: Results) -> float | None:
    return results.get("matrix_product_peak", {}).get("flops_per_second")


def conclusions(results: Results, settings: Settings) -> tuple[list[str], bool]:
    """Lines that set figures beside their targets; and whether every part worked and the numbers agree."""
    parity = results["parity"]
    wanted = (("float32", FP32_TARGET), ("bfloat16", BF16_TARGET))
    agree = [(name, max(parity[name].values()), target) for name, target in wanted if name in parity]
    lines = [verdict(f"parity with the CPU, {name}", worst, target, at_most=True) for name, worst, target in agree]
    peak, middle, last = _peak(results), settings.lengths[1], settings.lengths[-1]
    for kind, target in (("plain", PASS_TARGET), ("joint", PASS_TARGET), ("segments", SEGMENT_TARGET)):
        found = results.get(f"{kind} {middle}", {})
        if peak and "flops" in found:
            share = found["flops"] / found["best_seconds"] / peak
            lines.append(verdict(f"share of peak, {kind} at {middle}", share, target, at_most=False))
    largest = [results.get(f"{kind} {last}", {}).get("total_peak_bytes", 0) for kind in ("plain", "joint", "segments")]
    if all(largest):
        lines.append(verdict(f"bytes at {last} beside the model", max(largest), MEMORY_TARGET, at_most=True))
    ratio = results.get("straightforward", {}).get("ratio")
    if ratio:
        lines.append(f"times faster than the straightforward implementation: {ratio:.2f}")
    failed = [name for name, found in results.items() if "error" in found]
    if failed:
        lines.append(f"failed: {', '.join(failed)}")
    good = not failed and len(agree) == len(wanted) and all(worst <= target for _, worst, target in agree)
    return lines, good
