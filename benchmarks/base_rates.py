"""Measure the share of samples that depend on far text, in whole data sets, at several windows.

    .venv/bin/python benchmarks/base_rates.py --sets NAME=FILE [NAME=FILE ...] --model MODEL \
        --sizes 4096/1024 8192/2048 --samples 40 --out build/benchmarks/base_rates.json

A set is anything that `long_sft.path` reads, with `turns: last` and `parts: drop`, so that a session of a coding agent
and a conversation give one sample each. `qmsum.py --uncut` writes the questions of QMSum. A size is the most context
tokens, counted from the end, and theta_A's window. --samples of each set, rounded up to fours, are drawn by a hash of
their ids: more samples contain fewer. theta_B is the model itself, theta_A the same model whose prompt is cut to the
window.

`seen` is the share with far dependencies (`selection.evidence`). `corrected` takes the measured sensitivity and
specificity of that column into account (selection/forecast.py). Intervals (95 %) are those of Jeffreys' prior.
Tables are kept in --folder, a few samples per file, so that a stopped run resumes.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from common import benchmark_parser, machine, settings_of, show, table, write_json
from common_ranking import BOUNDS, Estimate
from common_selection import JoinedTables, LabelledCase, Record, Tables
from real_selection import FRAME, size

from gateau_dagster.config.inputs import LongSftConfig
from gateau_dagster.config.selection import CLASSES
from gateau_dagster.data.index import build_index, read_samples
from gateau_dagster.data.input_index import InputIndex
from gateau_dagster.data.sample import text_digest
from gateau_dagster.selection.evidence import CLASS_OF, dependencies
from gateau_dagster.selection.forecast import corrected_share

_PART = 4  # samples of one file of tables
_DRAWS = 20_000


@dataclass(frozen=True, kw_only=True)
class SetCase(LabelledCase):
    """A real model, theta_A's window, and a few samples of a data set. file: its path; part: which samples."""

    model: str
    label: str
    file: str
    tokens: int
    window: int
    part: int
    dtype: str

    @property
    def name(self) -> str:
        """The name in progress messages."""
        return f"{self.label} {self.tokens}/{self.window}, part {self.part}"

    def records(self) -> list[Record]:
        """Return the samples of the part."""
        return drawn_samples(self.file, _PART * self.part, _PART * (self.part + 1))

    def models(self) -> dict[str, Any]:
        """Return the model as theta_B, and as theta_A, which sees the window."""
        short = {"path": self.model, "context": "window", "window": self.window}
        return {"short": short, "long": {"path": self.model}}

    def scoring(self) -> dict[str, Any]:
        """Return the longest prompt."""
        return {"max_length": self.tokens + FRAME, "dtype": self.dtype}


def drawn_samples(file: str, first: int, stop: int) -> list[Record]:
    """Return the samples with these places in the order of their ids' hashes; fewer at the end of the set."""
    index, order = _drawn(file)
    chosen = order[first:stop]
    wanted = index.accepted.filter(index.accepted["sample_id"].is_in(chosen)).drop("shard")
    samples = {each.sample_id: each for each in read_samples(_input(file), index, wanted)}
    texts = ("source", "context", "instruction", "response")
    return [{"id": name, **{text: getattr(samples[name], text) for text in texts}} for name in chosen]


@cache
def _drawn(file: str) -> tuple[InputIndex, list[str]]:
    index = build_index(_input(file), Path.cwd())
    return index, sorted(index.accepted["sample_id"].to_list(), key=lambda name: text_digest([name]))


def _input(file: str) -> LongSftConfig:
    return LongSftConfig(path=file, shards=1, turns="last", parts="drop")


def measured(known: Tables) -> dict[str, Any]:
    """Return the number of samples by class, and the far share, as seen and corrected."""
    found = dependencies(known["cam"], known["perplexity/long"])["dependency"].to_list()
    counts = dict.fromkeys(CLASSES, 0)
    for dependency in found:
        counts[CLASS_OF[dependency]] += 1
    context = known["perplexity/long"]["context_tokens"]
    return {
        "samples": len(found),
        "unscored": len(known.records) - len(found),
        "context_tokens": float(context.median()),  # pyright: ignore[reportArgumentType]
        "classes": counts,
        "seen": seen_share(counts["far"], len(found)),
        "corrected": corrected_share(counts["far"], len(found)),
    }


def seen_share(far: int, total: int) -> Estimate:
    """Return the share with an interval from Jeffreys' prior, which holds the share."""
    draws = np.random.default_rng(0).beta(far + 0.5, total - far + 0.5, size=_DRAWS)
    low, high = np.percentile(draws, BOUNDS)
    share = far / total
    return Estimate(value=share, low=float(min(low, share)), high=float(max(high, share)))


def _named(text: str) -> tuple[str, str]:
    name, _, file = text.partition("=")
    if not file:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=FILE")
    return name, file


def parse(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--sets", nargs="+", type=_named, required=True, metavar="NAME=FILE", help="data sets: see above")
    add("--model", required=True, help="folder or hub name")
    add("--sizes", nargs="+", type=size, default=[(4096, 1024)], metavar="TOKENS/WINDOW")
    add("--samples", type=int, default=40, help="of each set")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    add("--device", default="cpu", help="as scoring.device")
    add("--folder", type=Path, default=Path("build/benchmarks/base_rates"), help="for the tables")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Parse, score, measure each set at each size, print, write."""
    arguments = parse(given)
    started, results = time.perf_counter(), dict[str, dict[str, Any]]()
    same = {name: getattr(arguments, name) for name in ("folder", "model", "dtype", "device")}
    for (label, file), (tokens, window) in product(arguments.sets, arguments.sizes):
        parts = list[Tables]()
        for part in range(-(-min(arguments.samples, len(_drawn(file)[1])) // _PART)):
            case = SetCase(label=label, file=file, tokens=tokens, window=window, part=part, **same)
            parts.append(Tables(case))
            parts[-1]["cam"]
        results.setdefault(label, {})[f"{tokens}/{window}"] = measured(JoinedTables(parts))
    rows = [
        [name, of, each["samples"], *each["classes"].values(), each["seen"].show(), _shown(each["corrected"])]
        for name, sizes in results.items()
        for of, each in sizes.items()
    ]
    show(table(["set", "size", "samples", *CLASSES, "far, seen", "far, corrected"], rows))
    settings = settings_of(arguments, "sets", "model") | {"model": Path(arguments.model).name}
    about = {"settings": settings, "machine": machine(), "seconds": time.perf_counter() - started}
    write_json(arguments.out, about | {"results": results})
    return 0


def _shown(share: Any) -> str:
    return Estimate(value=share.value, low=share.low, high=share.high).show()


if __name__ == "__main__":
    raise SystemExit(main())
