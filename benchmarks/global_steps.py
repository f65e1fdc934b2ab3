"""How the steps over the whole data set grow: `combined_scores` and `selected_subset` of 10^4 to 10^7 samples.

    .venv/bin/python benchmarks/global_steps.py --out build/benchmarks/global_steps.json

For every size the command writes the stored tables that the steps read (perplexities, `cam`, rejected samples, short
raw texts, in shards), then makes both assets by the functions that Dagster calls, from stored tables to stored tables
with plots and metadata, in a process of its own: so the peak memory is this size's, and Python and the libraries count.
Ids and digests are random (32 and 64 hexadecimal digits), one sample in a thousand is rejected, one in a hundred has a
single segment. It prints a table and writes global_steps.json. Ten million samples take 5 GB of disk.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from global_steps_measure import STEPS, measure
from global_steps_tables import make_store

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
MOST_REPEATS = 5


def say(text: str) -> None:
    """Progress goes to standard error, the table to standard output."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def in_fresh_process(*arguments: str) -> str:
    """This file's other parts, each with a memory of its own; returns what it prints."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def measured_sizes(sizes: list[int], segments: int, shards: int, folder: Path) -> list[dict[str, Any]]:
    """The figures of every size, smallest first."""
    found = []
    for rows in sorted(sizes):
        with tempfile.TemporaryDirectory(prefix="gateau-benchmark-", dir=folder) as place:
            say(f"{rows:,} samples: writing the tables ...")
            in_fresh_process(
                "--make", place, "--sizes", str(rows), "--segments", str(segments), "--shards", str(shards)
            )
            disk = sum(file.stat().st_size for file in Path(place).rglob("*.parquet"))
            repeats = max(1, min(MOST_REPEATS, 3_000_000 // rows))
            runs = []
            for repeat in range(repeats):
                runs.append(json.loads(in_fresh_process("--measure", place)))
                total = sum(runs[-1][asset]["seconds"] for asset in ("combined_scores", "selected_subset"))
                say(f"  run {repeat + 1} of {repeats}: {total:.2f} s, {runs[-1]['peak_bytes'] / 2**30:.2f} GiB")
            found.append({"rows": rows, "segments": segments, "shards": shards, "disk_bytes": disk, "runs": runs})
    return found


def summary(sizes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians a size, and the seconds as a multiple of what growing in proportion from the size before would give."""
    made: list[dict[str, Any]] = []
    for size in sizes:
        rows, runs = size["rows"], size["runs"]
        seconds = [run["combined_scores"]["seconds"] + run["selected_subset"]["seconds"] for run in runs]
        line: dict[str, Any] = {"rows": rows, "runs": len(runs), "seconds": median(seconds)}
        line |= {"least": min(seconds), "most": max(seconds), "rows_per_second": rows / median(seconds)}
        line["peak_bytes"] = max(run["peak_bytes"] for run in runs)
        if made:
            line["to_linear"] = line["seconds"] / (made[-1]["seconds"] * rows / made[-1]["rows"])
        for asset in ("combined_scores", "selected_subset"):
            line[asset] = median(run[asset]["seconds"] for run in runs)
            line[f"{asset} cpu"] = median(run[asset]["cpu_seconds"] for run in runs)
            steps = {step for run in runs for step in run[asset]["steps"]}
            line[f"{asset} steps"] = {
                step: median(run[asset]["steps"].get(step, 0.0) for run in runs) for step in STEPS if step in steps
            }
        made.append(line)
    return made


def show(lines: list[dict[str, Any]]) -> str:
    """Two Markdown tables: the sizes, and the steps of each."""
    rows = [
        "| samples | runs | seconds (range) | samples/s | of linear | peak | combined_scores | selected_subset |",
        "|" + "---|" * 8,
    ]
    for line in lines:
        linear = f"{line['to_linear']:.2f}" if "to_linear" in line else ""
        spread = f"{line['seconds']:.2f} ({line['least']:.2f}-{line['most']:.2f})"
        rows.append(
            f"| {line['rows']:,} | {line['runs']} | {spread} | {line['rows_per_second']:,.0f} | {linear} | "
            f"{line['peak_bytes'] / 2**30:.2f} GiB "
            f"| {line['combined_scores']:.2f} s | {line['selected_subset']:.2f} s |"
        )
    for asset in ("combined_scores", "selected_subset"):
        steps = [step for step in STEPS if any(step in line[f"{asset} steps"] for line in lines)]
        rows += ["", f"| {asset}: seconds by step | {' | '.join(steps)} | CPU |", "|" + "---|" * (len(steps) + 2)]
        for line in lines:
            values = (f"{line[f'{asset} steps'].get(step, 0.0):.2f}" for step in steps)
            rows.append(f"| {line['rows']:,} | {' | '.join(values)} | {line[f'{asset} cpu']:.2f} |")
    return "\n".join(rows)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; `--make` and `--measure`: a part, in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of samples")
    parser.add_argument("--segments", type=int, default=8, help="segments a sample (default 8)")
    parser.add_argument("--shards", type=int, default=16, help="shards of the tables (default 16)")
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks/global_steps.json"), help="JSON file")
    parser.add_argument(
        "--folder", type=Path, help="where the tables are made, and removed again (default: beside --out)"
    )
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    if options.make:
        make_store(options.make, rows=options.sizes[0], segments=options.segments, shards=options.shards)
        return 0
    if options.measure:
        print(json.dumps(measure(options.measure)))  # noqa: T201
        return 0
    folder = options.folder or options.out.parent
    folder.mkdir(parents=True, exist_ok=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    need, free = 600 * max(options.sizes), shutil.disk_usage(folder).free
    if free < need:
        sys.exit(
            f"{folder} has {free / 2**30:.0f} GiB free, and the largest size may take {need / 2**30:.0f}: see --folder"
        )
    found = measured_sizes(options.sizes, options.segments, options.shards, folder.absolute())
    lines = summary(found)
    options.out.write_text(json.dumps({"summary": lines, "sizes": found}, indent=1))
    print(show(lines))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
