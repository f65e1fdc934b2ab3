"""Writes synthetic long samples with a scripted generator, checks them, trains on them and compares the models.

    .venv/bin/python examples/synthesis/run.py --out build/example-synthesis

The documents are of the demo's language, so it is known which sample needs its context. The generator is a server on
this machine: half of its replies are cheats, in six ways. The script writes the documents (OUT/documents) and the
configuration, runs `gateau run`, and prints what became of honest samples and of cheats. No network; a few minutes on
two cores. A second call asks and trains nothing.
"""

import argparse
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import yaml
from rich.console import Console
from rich.table import Table

from gateau_dagster.features.demo.language import ATTRIBUTES, VALUES
from gateau_dagster.features.synthesis import CHECKS_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.questions import question_prompt
from gateau_dagster.features.synthesis.scripted_generator import (
    CHEATS,
    HONEST,
    ScriptedGenerator,
    demo_document,
    manner_of,
    serving,
)
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project

SETTINGS = Path(__file__).with_name("gateau.yaml")
DOCUMENTS, SHARE = 60, 0.5


def write_inputs(out: Path, port: int) -> Path:
    """Write the documents, the same at every call, and the configuration; return its file."""
    folder = out / "documents"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(DOCUMENTS):
        (folder / f"{number:03d}.txt").write_text(demo_document(number))
    content = yaml.safe_load(SETTINGS.read_text().replace("PORT", str(port)))
    pairs = [{"key": name, "values": list(VALUES[name])} for name in ATTRIBUTES]
    content["evaluation"]["needle"]["pairs"] = pairs
    file = out / "gateau.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def outcomes(file: Path) -> dict[str, Counter[str]]:
    """Return how many candidates were accepted or refused for each reason, by what the generator did."""
    state = state_of(config=load_project(file))
    asked, checked = (state.read(asset) for asset in (QUESTIONS_TABLE, CHECKS_TABLE))
    found: dict[str, Counter[str]] = {name: Counter() for name in (HONEST, *CHEATS)}
    both = asked.join(checked.select("sample_id", "reason"), on="sample_id").filter(pl.col("fault") != "declined")
    for row in both.iter_rows(named=True):
        prompt = question_prompt(row["kind"], [each["text"] for each in row["passages"]])
        found[manner_of(prompt, SHARE)][row["reason"] or "accepted"] += 1
    return found


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/example-synthesis"))
    parser.add_argument("--until", help="the last asset, such as synthetic_long_sft; all by default")
    given = parser.parse_args()
    documents = [demo_document(number) for number in range(DOCUMENTS)]
    with serving(ScriptedGenerator(cheats=SHARE, documents=documents)) as server:
        file = write_inputs(given.out, server.server_address[1])
        until = ["--until", given.until] if given.until else []
        command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file), *until]
        done = subprocess.run(command, env={**os.environ, "TOKENIZERS_PARALLELISM": "false"}, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    table = Table("the generator", "accepted", "refused", "by", box=None, title="What became of the candidates")
    for name, counts in outcomes(file).items():
        refused = {reason: count for reason, count in counts.items() if reason != "accepted"}
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(refused.items()))
        table.add_row(name, str(counts["accepted"]), str(sum(refused.values())), reasons)
    Console().print(table)


if __name__ == "__main__":
    main()
