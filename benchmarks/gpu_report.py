"""What the parts of a GPU run say: a table for scoring, one for training, and each figure beside its target."""

from collections.abc import Mapping
from typing import Any

from common_measure import verdict
from gpu_measure import Settings
from gpu_training_cases import PREFIX

PASS_TARGET, SEGMENT_TARGET = 0.5, 0.4  # share of the measured bf16 matrix-product peak
MEMORY_TARGET = 80e9  # bytes: a GPU of 80 GB
FP32_TARGET, BF16_TARGET = 1e-4, 1e-2  # relative

HEADER = ("part", "seconds", "tokens/s", "TFLOP/s", "share of peak", "peak GiB")
TRAINING_HEADER = (
    *("training, a step of", "seconds", "useful tokens/s", "TFLOP/s"),
    *("share of peak", "with recomputation", "peak GiB"),
)
TRAINING_NOTE = """\
A step: forward pass, loss in chunks, backward pass with gradient checkpointing, AdamW; bfloat16 autocast over float32
weights, without DeepSpeed. LoRA: rank 16, all linear layers. Share of peak counts forward and backward pass; with
recomputation also each layer's second forward pass, for checkpointing. Peak GiB: everything that is held.
"""

Results = Mapping[str, Mapping[str, Any]]


def rows_of(results: Results) -> list[list[object]]:
    """One row a pass of scoring that was measured or failed."""
    scoring = {name: found for name, found in results.items() if not name.startswith(PREFIX)}
    return [_row(name, found, _peak(results)) for name, found in scoring.items() if _is_shown(found)]


def training_rows_of(results: Results) -> list[list[object]]:
    """One row a case of training, also where nothing could be measured."""
    cases = {name.removeprefix(PREFIX): found for name, found in results.items() if name.startswith(PREFIX)}
    return [_training_row(name, found, _peak(results)) for name, found in cases.items()]


def _training_row(name: str, found: Mapping[str, Any], peak: float | None) -> list[object]:
    if "flops" not in found:
        return [name, _why_none(found), *[""] * 5]
    again = (found["flops"] + found["recomputed_flops"]) / found["best_seconds"]
    *shown, memory = _row(name, found, peak)
    return [*shown, "" if peak is None else f"{again / peak:.0%}", memory]


def _why_none(found: Mapping[str, Any]) -> str:
    if "out_of_memory" in found:
        return "out of memory"
    if "left_out" in found:
        return found["left_out"]
    return "failed" if "error" in found else "no time"


def reasons(results: Results) -> list[str]:
    """A line for each part without figures: what it said."""
    keys = ("error", "out_of_memory", "reason", "skipped")
    return [f"{name}: {found[key]}" for name, found in results.items() for key in keys if key in found]


def _is_shown(found: Mapping[str, Any]) -> bool:
    return "flops" in found or "error" in found or "skipped" in found


def _row(name: str, found: Mapping[str, Any], peak: float | None) -> list[object]:
    if "flops" not in found:
        return [name, _why_none(found), "", "", "", ""]
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
    parity = results.get("parity", {})
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
    compared = "parity" not in results or len(agree) == len(wanted)  # without the part, no scoring was asked for
    return lines, not failed and compared and all(worst <= target for _, worst, target in agree)
