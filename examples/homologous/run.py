"""Makes theta_B from theta_A by the pipeline, and shows how far both can look back.

    .venv/bin/python examples/homologous/run.py --out build/example-homologous

theta_A is the demo's: a tiny model with a window of 256 tokens, of a language in which it is known what can be
recalled. The script writes long and short texts of that language (OUT/texts), copies `gateau.yaml` beside them, where
`models.long` is `homologous:short`, runs `gateau run --until homologous_model/long`, and asks theta_A and the model
that came out for facts at growing distances. About two CPU minutes; a second call trains nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from gateau_dagster.features.demo.config import PAIR_FOLDER, SECTION, demo_folder
from gateau_dagster.features.demo.pair import LONG_LENGTHS, SHORT_LENGTHS, recall_at, write_texts
from gateau_dagster.pipeline.project import load_project

SETTINGS = Path(__file__).with_name("gateau.yaml")
MODEL = "homologous_model/long"
DISTANCES = (128, 512, 1000, 1500)
QUESTIONS = 60
# Of texts; the configuration says how many of them are trained on.
LONG_TOKENS, SHORT_TOKENS = 400_000, 250_000


def write_inputs(out: Path) -> Path:
    """Texts, the same at every call, and the configuration; returns its file."""
    (out / "texts").mkdir(parents=True, exist_ok=True)
    for name, tokens, lengths in (("long", LONG_TOKENS, LONG_LENGTHS), ("short", SHORT_TOKENS, SHORT_LENGTHS)):
        write_texts(out / "texts" / f"{name}.jsonl", np.random.default_rng(tokens), tokens=tokens, lengths=lengths)
    return Path(shutil.copy(SETTINGS, out / "gateau.yaml"))


def recalls(file: Path, questions: int) -> dict[str, dict[int, float]]:
    """Share of facts that are recalled, by model and distance in tokens."""
    config = load_project(file)
    demo = SECTION.of(config)
    assert demo is not None
    folders = {
        "theta_A": demo_folder(config.work_folder, demo) / PAIR_FOLDER / "short",
        "theta_B": Path(config.located_root) / MODEL,
    }
    disable_progress_bar()
    found: dict[str, dict[int, float]] = {}
    for name, folder in folders.items():
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        found[name] = {distance: recall_at(model, distance, repeats=questions) for distance in DISTANCES}
    return found


def show(found: Mapping[str, Mapping[int, float]], console: Console) -> None:
    """A line a model."""
    table = Table("recalls at a distance of", *(f"{distance} tokens" for distance in DISTANCES), box=None)
    for name, shares in found.items():
        table.add_row(name, *(f"{share:.0%}" for share in shares.values()))
    console.print(table)
    console.print("[dim]A guess is right in one of eight cases.[/dim]")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/example-homologous"))
    options = parser.parse_args()
    file = write_inputs(options.out.absolute())
    command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file), "--until", MODEL]
    done = subprocess.run(command, cwd=file.parent, env={**os.environ, "GATEAU_CONFIG": str(file)}, check=False)
    if done.returncode == 0:
        show(recalls(file, QUESTIONS), Console())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
