"""What a re-run of the scoring costs after 0, 1 and 1 % changed samples of 10,000.

    .venv/bin/python benchmarks/rerun.py --out build/benchmarks/rerun.json

A project with tiny random models is scored by `gateau run --until combined_scores`, each run a process of its own, as a
user starts it. Then samples are changed in the input file, and it is run again:

- full:     everything is scored; `method s` is what the scored tables say of themselves (`effort` in their stamps).
- nothing:  no sample changed. No Dagster run is started.
- one:      the response of one sample changed, another one each time.
- percent:  one sample in a hundred changed, spread over all shards.
- start-up: a project of as many samples as shards, scored from nothing: what a run with work to do costs before the
            first sample counts (libraries, Dagster, one load of each model).

The target is a share of the full run: (one - start-up) / full < 1 %. The stricter (one - nothing) / full stands beside
it; it charges the sample for the libraries and models that a run without work never loads.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from common_measure import Spread, machine, say, show, table, verdict, write_json
from common_models import TINY, make_samples
from orchestration_ways import make_project as make_any_project
from orchestration_ways import prepare_home, process

from gateau_dagster.pipeline.project import load_project
from gateau_dagster.pipeline.state import State

TARGET = 0.01
SCORED = ("perplexity/short", "perplexity/long", "cam")


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One `gateau run`: seconds of wall time, of all its processors, and of the method; samples it scored, each table
    counted."""

    kind: str
    changed: int
    wall: float
    cpu: float
    method: float
    scored: int


def make_project(folder: Path, *, samples: int, options: argparse.Namespace) -> Path:
    """A project of so many samples of `--tokens` tokens; returns its configuration file."""
    file = make_any_project(folder, shards=options.shards, samples=1)
    answer = options.tokens // 8
    made = make_samples(
        TINY.vocabulary, samples, tokens=options.tokens, response_tokens=answer, instruction_tokens=answer
    )
    lines = [
        {"id": each.sample_id, "context": each.context, "instruction": each.instruction, "response": each.response}
        for each in made
    ]
    (file.parent / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def scored_run(file: Path, kind: str, changed: int) -> Timed:
    """Runs the pipeline as it stands; the stamps that are new say what was scored."""
    before = stamps(file)
    done = process([sys.executable, "-m", "gateau_dagster.cli", "run", "--until", "combined_scores"], file)
    efforts = [effort for key, effort in stamps(file).items() if before.get(key) != effort]
    return Timed(
        kind=kind,
        changed=changed,
        wall=done.wall,
        cpu=done.cpu,
        method=sum(float(effort.get("seconds", 0.0)) for _, effort in efforts),
        scored=sum(int(effort.get("samples", 0)) for _, effort in efforts),
    )


def stamps(file: Path) -> dict[tuple[str, str], tuple[str, dict[str, float]]]:
    """Fingerprint and effort of every scored shard."""
    state = State(config=load_project(file))
    found = state.store.stamps((asset, shard) for asset in SCORED for shard in state.shards)
    return {(asset, shard or ""): (stamp.fingerprint, stamp.effort) for (asset, shard), stamp in found.items() if stamp}


def change(file: Path, numbers: range | list[int], note: str) -> None:
    """Other responses for the samples at these places of the input file."""
    path = file.parent / "long.jsonl"
    lines = path.read_text().splitlines()
    for number in numbers:
        record = json.loads(lines[number])
        words = record["response"].split()
        lines[number] = json.dumps(record | {"response": " ".join([*words[1:], f"w{10 + len(note)}", words[0]])})
    path.write_text("\n".join(lines) + "\n")


def measure(options: argparse.Namespace, folder: Path) -> list[Timed]:
    """All kinds of run; `nothing` and `one` in turn, so that a busy moment of the machine meets both."""
    found: list[Timed] = []

    def run(file: Path, kind: str, changed: int) -> None:
        found.append(scored_run(file, kind, changed))
        say(f"  {kind}: {found[-1].wall:.1f} s, {found[-1].scored} rows scored in {found[-1].method:.2f} s")

    say(f"start-up: {options.shards} samples in {options.shards} shards")
    for number in range(options.repeats):
        small = make_project(folder / f"small-{number}", samples=options.shards, options=options)
        prepare_home(small)
        run(small, "start-up", options.shards)
    say(f"{options.samples} samples in {options.shards} shards")
    file = make_project(folder / "project", samples=options.samples, options=options)
    prepare_home(file)
    run(file, "full", options.samples)
    for number in range(options.repeats):
        run(file, "nothing", 0)
        change(file, [number * 7 % options.samples], note=f"{number}")
        run(file, "one", 1)
    for number in range(options.repeats):
        some = range(number, options.samples, 100)
        change(file, some, note=f"percent {number}")
        run(file, "percent", len(some))
    return found


def summary(found: list[Timed]) -> dict[str, Spread]:
    """Wall seconds by kind of run."""
    kinds = dict.fromkeys(each.kind for each in found)
    return {kind: Spread.of([each.wall for each in found if each.kind == kind]) for kind in kinds}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000, help="of the project, default 10000")
    parser.add_argument("--shards", type=int, default=16, help="of the project, default 16")
    parser.add_argument("--tokens", type=int, default=96, help="of each sample's scoring prompt, default 96")
    parser.add_argument("--repeats", type=int, default=3, help="of each kind of re-run, default 3")
    parser.add_argument("--out", type=Path, help="JSON file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Parse, measure, print; the exit status."""
    options = parse(arguments)
    description = machine()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    walls = summary(found)
    full = walls["full"].median
    rows = []
    for kind, spread in walls.items():
        each = [run for run in found if run.kind == kind]
        cpu, method = (Spread.of([getattr(run, name) for run in each]).median for name in ("cpu", "method"))
        share = f"{100 * spread.median / full:.1f} %"
        rows.append([kind, each[0].changed, each[-1].scored, spread.show(1), f"{cpu:.1f}", f"{method:.2f}", share])
    show(table(["run", "changed", "rows scored", "wall s (quartiles)", "cpu s", "method s", "of full"], rows))
    for base in ("start-up", "nothing"):
        share = (walls["one"].median - walls[base].median) / full
        show(verdict(f"(one - {base}) / full", share, TARGET, at_most=True))
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    write_json(options.out, {"machine": description, "settings": settings, "runs": [asdict(each) for each in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
