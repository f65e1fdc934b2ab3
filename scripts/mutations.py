"""Put one fault after another into a copy of the tree, and see that the tests notice each.

    .venv/bin/python scripts/mutations.py [--only PART_OF_A_PATH]

scripts/mutations.json lists the faults: a file, one of its lines, the line with the fault, and the test file that
notices it. Run it before and after tests are made fewer: a fault that survives is a hole.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
_LEFT_OUT = (".venv", ".git", ".gateau", "build", "gateau_store", "gateau_demo", "__pycache__")
_FAILED = 1  # pytest's exit status where tests ran and one failed


def mutated(text: str, old: str, new: str) -> str:
    """Return the text with the fault in it.

    Raises:
        SystemExit: the line is not there exactly once.
    """
    lines = text.split("\n")
    places = [number for number, line in enumerate(lines) if line.strip() == old]
    if len(places) != 1:
        raise SystemExit(f"This line is there {len(places)} times, not once: {old}")
    lines[places[0]] = lines[places[0]].replace(old, new)
    return "\n".join(lines)


def tested(folder: Path, *files: str) -> int:
    """Run the everyday tests of some files in a copy of the tree; return pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["-m", "not long and not slow and not kills", *files]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode


def main() -> int:
    """Return 1 if a fault survives, or if a test fails without one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults of files whose path contains this")
    only = parser.parse_args().only
    faults = json.loads(Path(__file__).with_suffix(".json").read_text())
    chosen = [fault for fault in faults if only in fault["file"]]
    survivors = 0
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT), symlinks=True)
        if tested(copy, *sorted({fault["test"] for fault in chosen})):
            click.echo("These tests fail without a fault.")
            return 1
        for number, fault in enumerate(chosen, 1):
            file = copy / fault["file"]
            text = file.read_text()
            file.write_text(mutated(text, fault["old"], fault["new"]))
            caught = tested(copy, fault["test"]) == _FAILED
            file.write_text(text)
            survivors += not caught
            click.echo(f"{number}/{len(chosen)} {'caught' if caught else 'SURVIVES'}  {fault['file']}: {fault['new']}")
    click.echo(f"{len(chosen) - survivors} of {len(chosen)} faults are caught.")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
