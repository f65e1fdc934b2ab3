"""Time the commands of a working day, as processes, on a store that is up to date.

    .venv/bin/python benchmarks/daily.py --out build/benchmarks/daily.json
    .venv/bin/python benchmarks/daily.py --against ../other/.venv/bin/python

The store has --samples short samples of a random language, scored by a random model, with a rule `auto` and evidence
as `gateau init` writes them; it is made once in --folder, in about two minutes. Each round starts every command once,
and beside them Python with two libraries that every command needs (`import polars, yaml`). With --against, the commands
of another version, by its interpreter, take their turns on a copy of the project.

CPU seconds are of the process and its children. Unlike wall times they hardly depend on what else the machine does.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

import common
import yaml
from common_models import TINY, build_model, make_samples

BASE = ("-c", "import polars, yaml")
COMMANDS = (
    *("--help", "explain config.no_file", "plan", "run", "status", "validate", "forecast"),
    *("show --top 10", "show s0007", "clean"),
)
_LENGTHS = (80, 160, 240)  # tokens of a prompt; theta_A sees the last 64


def make_project(folder: Path, samples: int, shards: int) -> None:
    """Write data, a model and a configuration; leave those that are there."""
    if (folder / "gateau.yaml").is_file():
        return
    loaded = build_model(TINY, name="long")
    for each in (loaded.model, loaded.tokenizer):
        each.save_pretrained(folder / "model")
    texts = [make_samples(TINY.vocabulary, samples, tokens=each, response_tokens=8) for each in _LENGTHS]
    with (folder / "long.jsonl").open("w") as file:
        for number in range(samples):
            one = texts[number % len(texts)][number]
            record = {"id": one.sample_id, "source": f"source-{number % 5}", "context": one.context}
            file.write(json.dumps(record | {"instruction": one.instruction, "response": one.response}) + "\n")
    content = {
        "storage": {"root": "store"},
        "long_sft": {"path": "long.jsonl", "shards": shards},
        "models": {"short": {"path": "model", "context": "window", "window": 64}, "long": {"path": "model"}},
        "scoring": {"max_length": 8192, "segment_length": 16, "dtype": "float32", "device": "cpu"},
        "selection": {"rule": "auto", "fraction": 0.1, "evidence": True},
        "training": {"enabled": False},
    }
    (folder / "gateau.yaml").write_text(yaml.safe_dump(content))


def timed(python: str, arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of a process of Python. Raise RuntimeError if it fails."""
    left_out = {"PYTHONDONTWRITEBYTECODE", "GATEAU_CONFIG", "DAGSTER_HOME"}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    started = time.perf_counter()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen([python, *arguments], cwd=folder, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {(folder / 'output.txt').read_text()[-2000:]}")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime


def command(text: str) -> list[str]:
    """Return the arguments of Python that run a command of `gateau`."""
    return ["-m", "gateau_dagster.cli", *text.split()]


def measure(pythons: Mapping[str, str], folder: Path, rounds: int) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return wall and CPU seconds of every round, by version and command, and of the base as a version `base`."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {"base": {"": []}}
    for name, python in pythons.items():
        found[name] = {each: [] for each in COMMANDS}
        for each in ("run", *COMMANDS, "run"):  # fills the caches, and compiles the modules
            timed(python, command(each), folder / name)
    for number in range(rounds):
        found["base"][""].append(timed(sys.executable, BASE, folder))
        for each in COMMANDS:
            for name, python in sorted(pythons.items(), reverse=bool(number % 2)):
                found[name][each].append(timed(python, command(each), folder / name))
        common.say(f"round {number + 1} of {rounds}")
    return found


def summary(found: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> dict[str, Any]:
    """Return the spreads of each command: seconds, and CPU seconds as multiples of the base's of the same round."""
    base = [cpu for _, cpu in found["base"][""]]
    results: dict[str, Any] = {}
    for each in COMMANDS:
        wall, cpu = ([times[kind] for times in found["now"][each]] for kind in (0, 1))
        results[each] = {"wall": common.Spread.of(wall), "cpu": common.Spread.of(cpu)}
        results[each]["of_base"] = common.ratios(cpu, base)
        if "before" in found:
            before = [times[1] for times in found["before"][each]]
            results[each] |= {"before_cpu": common.Spread.of(before), "faster": common.ratios(before, cpu)}
    return results


def main(arguments: list[str] | None = None) -> int:
    """Parse, make the store, measure, print; the exit status."""
    parser = common.benchmark_parser(__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/daily"), help="where the store is kept")
    parser.add_argument("--against", type=Path, help="the Python interpreter of another version")
    options = parser.parse_args(arguments)
    now = options.folder.absolute() / "now"
    (now / "model").mkdir(parents=True, exist_ok=True)
    make_project(now, options.samples, options.shards)
    common.say("making the store, if it is not up to date")
    timed(sys.executable, command("run"), now)
    pythons = {"now": sys.executable}
    if options.against is not None:
        pythons["before"] = str(options.against.absolute())
        if not (now.parent / "before").exists():
            copytree(now, now.parent / "before")
    description = common.machine()
    found = measure(pythons, now.parent, options.rounds)
    results, base = summary(found), [common.Spread.of([times[kind] for times in found["base"][""]]) for kind in (0, 1)]
    names = [name for name in ("wall", "cpu", "before_cpu", "of_base", "faster") if name in results[COMMANDS[0]]]
    rows = [[each, *(results[each][name].show() for name in names)] for each in COMMANDS]
    rows.append(["import polars, yaml", *(each.show() for each in base), *[""] * (len(names) - 2)])
    common.show(common.table(["command", *names], rows))
    content = {"machine": description, "settings": common.settings_of(options), "commands": results}
    common.write_json(options.out, content | {"base": {"wall": base[0], "cpu": base[1]}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
