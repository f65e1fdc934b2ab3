"""How fast pretrained models score real text on the CPU: float32 and bfloat16, one thread, two threads, two processes.

    .venv/bin/python benchmarks/real_speed.py --nq natural_questions.jsonl.gz --models MODEL [MODEL ...] \
        --tokens 512 1024 --out build/benchmarks/real_speed.json

Both tables of theta_B (`perplexity/long` and `cam`) of the samples of real_text.py, whose help says where --nq comes
from. Every way has processes of its own, all with their model loaded; they score in turns. Tokens are those that pass
through the model; the peak is that of a matrix product of the same type, times the cores of the way. Needs two idle
cores, and the memory for five copies of a model.
"""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from common_measure import Spread, machine, ratios, say, show, table, write_json
from common_pipeline import score_with_meter
from real_selection import RealCase

from gateau_dagster.data.forms import to_sample
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.devices import matrix_product_speed
from gateau_dagster.models.loading import load_model

KINDS = ("far_one", "near")


@dataclass(frozen=True, kw_only=True)
class Way:
    """`processes` of so many threads each."""

    dtype: str
    processes: int = 1
    threads: int = 1

    @property
    def cores(self) -> int:
        """That it can use."""
        return self.processes * self.threads

    @property
    def name(self) -> str:
        """As it is printed."""
        how = "one thread" if self.cores == 1 else "two threads" if self.threads == 2 else "two processes"
        return f"{self.dtype}, {how}"


WAYS = [
    Way(dtype=dtype, processes=processes, threads=threads)
    for dtype in ("float32", "bfloat16")
    for processes, threads in ((1, 1), (1, 2), (2, 1))
]


class Workers:
    """The processes of a way, each with its share of the samples."""

    def __init__(self, case: RealCase, way: Way, opened: ExitStack) -> None:
        spawn, self._ends = multiprocessing.get_context("spawn"), list[Connection]()
        for number in range(way.processes):
            here, there = spawn.Pipe()
            process = spawn.Process(target=_work, args=(there, case, way, number), daemon=True)
            process.start()
            opened.callback(process.join)
            opened.callback(here.close)
            self._ends.append(here)
        self.peak = sum(end.recv() for end in self._ends)

    def score(self) -> tuple[float, float, float]:
        """Seconds, tokens and FLOPs of all samples."""
        started = time.perf_counter()
        for end in self._ends:
            end.send("score")
        found = [end.recv() for end in self._ends]
        tokens, flops = (sum(each) for each in zip(*found, strict=True))
        return time.perf_counter() - started, tokens, flops


def _work(end: Connection, case: RealCase, way: Way, number: int) -> None:
    """In the process: loads the model, tells the peak, and scores its share whenever it is told to."""
    import torch

    torch.set_num_threads(way.threads)
    config = case.config()
    scoring = config.scoring.model_copy(update={"dtype": way.dtype})
    loaded = load_model(config.models["long"], dtype=scoring.dtype, device="cpu", folder=Path())
    samples = _samples(case)[number :: way.processes]
    end.send(matrix_product_speed("cpu", way.dtype) or 0.0)
    while True:
        try:
            end.recv()
        except EOFError:  # nobody asks any more
            return
        meter = score_with_meter(loaded, samples, scoring)
        end.send((meter.perplexity.tokens + meter.cam.tokens, meter.perplexity.flops + meter.cam.flops))


def _samples(case: RealCase) -> list[Sample]:
    """The longest first, so that two processes end at about the same time."""
    made = [to_sample(record, location=str(record["id"]), stem="") for record in case.records()]
    return sorted((each for each in made if isinstance(each, Sample)), key=lambda each: -sum(each.lengths))


def measured(case: RealCase, rounds: int) -> dict[str, dict[str, Any]]:
    """By way: seconds round by round, and from their median tokens/s and the share of the peak."""
    with ExitStack() as opened:
        workers = {way: Workers(case, way, opened) for way in WAYS}
        found: dict[Way, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
        for number in range(rounds + 1):
            for way in WAYS if number % 2 else reversed(WAYS):
                one = workers[way].score()
                if number:  # the first round warms up
                    found[way].append(one)
            say(f"  round {number} of {rounds}")
    return {way.name: _figures(times, workers[way].peak) for way, times in found.items()}


def _figures(times: Sequence[tuple[float, float, float]], peak: float) -> dict[str, Any]:
    seconds = [each[0] for each in times]
    return {
        "seconds": seconds,
        "tokens_per_second": [tokens / each for each, tokens, _ in times],
        "share_of_peak": [flops / each / peak if peak else 0.0 for each, _, flops in times],
    }


def printed(name: str, found: dict[str, dict[str, Any]]) -> None:
    """A row a way; how many times as fast it is as one thread, and as float32 in the same way."""
    rows = []
    for way in WAYS:
        one, own = found[Way(dtype=way.dtype).name], found[way.name]
        single = found[Way(dtype="float32", processes=way.processes, threads=way.threads).name]
        rows.append([
            way.name,
            Spread.of(own["tokens_per_second"]).show(0),
            f"{Spread.of(own['share_of_peak']).median:.0%}",
            "" if own is one else ratios(one["seconds"], own["seconds"]).show(),
            "" if own is single else ratios(single["seconds"], own["seconds"]).show(),
        ])  # fmt: skip
    show(f"\n{name}\n" + table(["way", "tokens/s", "of peak", "of one thread", "of float32"], rows))


def main(given: list[str] | None = None) -> int:
    """Parse, measure each model and length, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nq", required=True, help="questions with passages: see the help of real_text.py")
    parser.add_argument("--models", nargs="+", required=True, help="folders or hub names")
    parser.add_argument("--tokens", nargs="+", type=int, default=[512, 1024], help="of a context (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args(given)
    found: dict[str, Any] = {}
    for model in arguments.models:
        for tokens in arguments.tokens:
            more = {"window": tokens // 2, "seed": 0, "per_kind": 1, "kinds": KINDS}
            case = RealCase(folder=Path(), model=model, nq=arguments.nq, tokens=tokens, **more)
            name = f"{Path(model).name}, contexts of {tokens:,} tokens"
            say(name)
            found[name] = measured(case, arguments.rounds)
            printed(name, found[name])
    write_json(arguments.out, {"machine": machine(), "results": found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
