"""Measure time and peak memory, run in a process, describe the machine, parse arguments, write tables and JSON."""

import argparse
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import psutil
import torch
import transformers

from gateau_dagster.storage.local import fill_with, replace_local

T = TypeVar("T")
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and quartiles of repeated measurements."""

    median: float
    lower: float
    upper: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of these values; of one or two, the quartiles are the smallest and the largest."""
        if len(values) < 3:
            return cls(median=statistics.median(values), lower=min(values), upper=max(values), count=len(values))
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median=median, lower=lower, upper=upper, count=len(values))

    def show(self, digits: int = 2) -> str:
        """Return `median (lower-upper)`."""
        return f"{self.median:.{digits}f} ({self.lower:.{digits}f}-{self.upper:.{digits}f})"


def synchronise(device: torch.device) -> None:
    """Wait for the device: a pass on a GPU returns before it is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of one call, until the device is done with it."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def interleaved(
    candidates: Mapping[str, Callable[[], object]], repetitions: int, device: torch.device
) -> dict[str, list[float]]:
    """Return seconds of each candidate, timed in turns, so that whatever else the machine does affects all of them.

    Every other round runs backwards: no candidate always follows the same one. Call each once before, to warm up.
    """
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for repetition in range(repetitions):
        order = list(candidates)
        for name in order if repetition % 2 == 0 else reversed(order):
            found[name].append(seconds(candidates[name], device))
        say(f"  round {repetition + 1} of {repetitions}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in found.items()))
    return found


def ratios(slow: Sequence[float], fast: Sequence[float]) -> Spread:
    """Return how many times faster, round by round."""
    return Spread.of([a / b for a, b in zip(slow, fast, strict=True)])


def memory_held(device: torch.device) -> int:
    """Return bytes: the process's resident set on a CPU, what torch has allocated on a GPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return psutil.Process().memory_info().rss


def reserved_bytes(device: torch.device) -> dict[str, int]:
    """Return the peak with what torch's allocator keeps, for the JSON; empty on a CPU."""
    return {"reserved_bytes": torch.cuda.max_memory_reserved(device)} if device.type == "cuda" else {}


class PeakMemory:
    """The most memory held since it was made, in the same terms as `memory_held`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        else:
            # Unlike getrusage's, this high-water mark can be reset, and is not inherited from the starting process.
            with suppress(OSError):
                _CLEAR.write_text("5")

    def read(self) -> int:
        """Return the peak in bytes."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        marks = [line.split()[1] for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(marks[0]) * 1024 if marks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def in_a_process(work: Callable[..., T], *arguments: Any) -> T:
    """Return the result of `work`, a function of a module, in a fresh process. Raise its errors."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")[:300]


def machine() -> dict[str, Any]:
    """Return the properties of the machine and software that the figures depend on, without names of hosts or paths."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.is_file() else []
    names = [line for line in lines if line.startswith("model name")]
    found: dict[str, Any] = {
        "cpu": names[0].split(":", 1)[1].strip() if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_at_start": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = properties.name
        found["gpu_memory_gib"] = round(properties.total_memory / 2**30, 1)
        found["gpus"] = torch.cuda.device_count()
        found["cuda"] = torch.version.cuda
    return found


class Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """The script's docstring as it is, and each option's default."""


def benchmark_parser(about: str | None, out: str = "JSON file for the results", **more: Any) -> argparse.ArgumentParser:
    """Return a parser whose help is the script's docstring and tells each default; `out` is the help of `--out`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=Help)
    parser.add_argument("--out", type=Path, help=out, **more)
    return parser


def settings_of(options: argparse.Namespace, *without: str) -> dict[str, Any]:
    """Return the options for the JSON, without paths and those named."""
    left_out = {"out", *without}
    return {
        name: value for name, value in vars(options).items() if name not in left_out and not isinstance(value, Path)
    }


def say(text: str) -> None:
    """Write progress to standard error."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def show(text: str) -> None:
    """Write results to standard output."""
    print(text, flush=True)  # noqa: T201


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return columns under their names, the first flush left, the others flush right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * width for width in widths), *map(line, cells[1:])])


def estimate_text(
    triple: Sequence[float | None], digits: int = 3, between: str = "-", *, sign: Literal["", "+"] = ""
) -> str:
    """Return a value and the ends of its interval as `0.987 (0.971-0.996)`; the value only where an end is unknown.

    Zero has no minus, unless `sign` asks for signs: they say on which side of zero an end is.
    """
    numbers = [each if sign else round(each, digits) + 0.0 for each in triple if each is not None]
    value, *ends = (f"{each:{sign}.{digits}f}" for each in numbers)
    return value if len(ends) < 2 else f"{value} ({ends[0]}{between}{ends[1]})"


def verdict(name: str, value: float, target: float, *, at_most: bool) -> str:
    """Return a line that compares a figure with its target."""
    met = value <= target if at_most else value >= target
    return f"{name}: {value:.3g} (target {'<=' if at_most else '>='} {target:.3g}: {'met' if met else 'NOT MET'})"


def write_json(file: Path | None, content: Mapping[str, Any], *, announce: bool = True) -> None:
    """Write the results in one step, if there is a file. Dataclasses become mappings."""
    if file is None:
        return
    text = json.dumps(content, indent=1, default=asdict) + "\n"
    replace_local(file, lambda part: fill_with(part, text.encode()))
    if announce:
        say(f"wrote {file.name}")
