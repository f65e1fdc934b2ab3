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
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import yaml

from gateau_dagster import tables
from gateau_dagster.config.load import load_config
from gateau_dagster.incremental.state import State
from gateau_dagster.progress import silent
from gateau_dagster.storage import Stamp, Store

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
MOST_REPEATS = 5
SEGMENT_LENGTH, WINDOW = 128, 512
STEPS = ("read", "join", "sort", "presets", "rank", "order", "digest", "write", "plots", "choose", "rest")


def say(text: str) -> None:
    """Progress goes to standard error, the table to standard output."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def make_store(folder: Path, *, rows: int, segments: int, shards: int) -> None:
    """A configuration and the stored tables of `rows` samples, of which nearly all have `segments` segments."""
    content = {
        "storage": {"root": "store"},
        "long_sft": {"path": "long.jsonl", "shards": shards},
        "models": {"short": {"path": "short"}, "long": {"path": "long"}},
        "scoring": {"segment_length": SEGMENT_LENGTH},
        "training": {"enabled": False},
    }
    (folder / "gateau.yaml").write_text(yaml.safe_dump(content))
    state = State(config=load_config(folder / "gateau.yaml"))
    borders = np.linspace(0, rows, shards + 1).astype(int)
    for number, shard in enumerate(state.shards):
        rng = np.random.default_rng([rows, number])
        for asset, (table, rejected) in _shard_tables(rng, int(np.diff(borders)[number]), segments).items():
            state.store.write(table, asset, shard, Stamp(fingerprint="made", content="made"), rejected)


def _shard_tables(rng: np.random.Generator, rows: int, segments: int) -> dict[str, tuple[pl.DataFrame, pl.DataFrame]]:
    """Each asset's table and rejected samples, as their promised columns say."""
    ids = pl.DataFrame({"sample_id": _hexadecimal(rng, rows, 32), "digest": _hexadecimal(rng, rows, 64)})
    ids = ids.sort("sample_id")
    counts = np.where(rng.random(rows) < 0.01, 1, segments)
    contexts = (counts * SEGMENT_LENGTH - rng.integers(0, SEGMENT_LENGTH, rows)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    long = np.exp(rng.normal(1.5, 0.6, rows))
    texts = {name: pl.format(f"{name} of {{}}", "sample_id") for name in ("context", "instruction", "response")}

    def perplexity(values: np.ndarray, seen: np.ndarray) -> pl.DataFrame:
        numbers = {"perplexity": values, "mean_nll": np.log(values), "context_tokens": seen}
        numbers |= {
            "mean_probability": 1 / values,
            "response_tokens": contexts // 4 + 1,
            "truncated_tokens": contexts - seen,
        }
        return ids.with_columns(pl.Series(name, column) for name, column in numbers.items())

    def lists(values: np.ndarray) -> pl.Series:
        return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(values)))

    made = {
        "raw_long_sft": ids.with_columns(source=pl.lit("benchmark"), **texts),
        "perplexity/short": perplexity(long * np.exp(rng.gamma(1.0, 0.3, rows)), np.minimum(contexts, WINDOW)),
        "perplexity/long": perplexity(long, contexts),
        "cam": ids.with_columns(
            segments=pl.Series(counts),
            segment_perplexity=lists(np.exp(rng.normal(2.0, 0.6, offsets[-1]))),
            segment_attention=lists(rng.random(offsets[-1]) * 1e-3),
            cas=pl.when(pl.Series(counts > 1)).then(pl.Series(rng.uniform(0.3, 1, rows))),
            far_gain=pl.when(pl.Series(counts > 1)).then(pl.Series(rng.beta(0.3, 3, rows))),
        ),
    }
    promised = {"raw_long_sft": tables.RAW_LONG_SFT, "cam": tables.CAM}
    found = {}
    for name, frame in made.items():
        kept = np.ones(rows, dtype=bool) if name == "raw_long_sft" else rng.random(rows) >= 0.001
        rejected = frame.filter(~kept).select("sample_id", reason=pl.lit("the benchmark rejects it"))
        schema = tables.schema(promised.get(name, tables.PERPLEXITY))
        # No global step reads a column of tokens: one of them stands for a whole response.
        by_token = {key: pl.concat_list(pl.lit(0.5)) for key, kind in schema.items() if kind == pl.List(pl.Float32)}
        whole = frame.filter(kept).with_columns(**by_token)
        found[name] = (whole.select(pl.col(key).cast(kind) for key, kind in schema.items()), rejected)
    return found


def _hexadecimal(rng: np.random.Generator, rows: int, digits: int) -> pl.Series:
    text = pa.py_buffer(rng.bytes(rows * digits // 2).hex().encode())
    offsets = pa.py_buffer(np.arange(rows + 1, dtype=np.int64) * digits)
    return pl.Series(pa.LargeStringArray.from_buffers(rows, offsets, text))


class Clock:
    """Seconds by step; what one timed function calls another for counts for the other."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self._running: list[str] = []
        self._since = time.perf_counter()

    def switch(self, step: str | None) -> None:
        """From now on `step` runs; None: the one before it again."""
        now = time.perf_counter()
        if self._running:
            name = self._running[-1]
            self.wall[name] = self.wall.get(name, 0.0) + now - self._since
        self._since = now
        if step is None:
            self._running.pop()
        else:
            self._running.append(step)

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its time counted where it is called by the main thread."""

        def call(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **named)
            self.switch(step)
            try:
                return function(*arguments, **named)
            finally:
                self.switch(None)

        return call


def watch(clock: Clock) -> None:
    """Puts the clock around the functions of which the two assets consist."""
    from assets import selection as asset
    from gateau_dagster.selection import combine
    from gateau_dagster.storage import store

    places: list[tuple[Any, str, str]] = [
        (Store, "_found", "read"),
        (Future, "result", "read"),  # what is read ahead is read while other steps run; here, the waiting for it
        (asset, "join_shard", "join"),
        (asset, "join_all", "sort"),
        (asset, "ranked", "order"),
        (combine, "rank", "rank"),
        (store, "frame_digest", "digest"),
        (asset, "rows_digest", "digest"),
        (store, "write_parquet", "write"),
        (asset, "_score_figures", "plots"),
        (asset, "best", "choose"),
        (asset, "choose", "choose"),
    ]
    for owner, name, step in places:
        setattr(owner, name, clock.timed(step, getattr(owner, name)))
    for name, preset in list(combine.PRESET_FUNCTIONS.items()):
        combine.PRESET_FUNCTIONS[name] = clock.timed("presets", preset)


def measure(folder: Path) -> dict[str, Any]:
    """Makes both assets once; seconds and peak memory of this process, which must be a fresh one."""
    import gateau_dagster.report.plots.scores  # noqa: F401 (loading libraries is start-up, not work)
    from assets.selection import make_scores, make_subset

    state = State(config=load_config(folder / "gateau.yaml"))
    before = _peak_bytes()
    found: dict[str, Any] = {}
    clock = Clock()
    watch(clock)
    for asset, make in (("combined_scores", make_scores), ("selected_subset", make_subset)):
        clock.wall, cpu = {}, time.process_time()
        stamp, _ = clock.timed("rest", make)(state, Stamp(fingerprint="benchmark"), silent)
        found[asset] = {
            "seconds": sum(clock.wall.values()),
            "cpu_seconds": time.process_time() - cpu,
            "rows": stamp.rows,
            "steps": clock.wall,
        }
    return {**found, "start_bytes": before, "peak_bytes": _peak_bytes()}


def _peak_bytes() -> int:
    """Largest resident size; that of `getrusage` would include the process this one was started from."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


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


def main() -> None:
    """Command line."""
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
    options = parser.parse_args()
    if options.make:
        make_store(options.make, rows=options.sizes[0], segments=options.segments, shards=options.shards)
        return
    if options.measure:
        print(json.dumps(measure(options.measure)))  # noqa: T201
        return
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


if __name__ == "__main__":
    main()
