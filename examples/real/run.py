"""Runs the whole pipeline on your own samples with a small pair that is built from their text.

    .venv/bin/python examples/real/run.py --long data/long.jsonl.gz --short-chat data/sharegpt.json

It builds the pair (OUT/pair), writes the configuration (OUT/gateau.yaml) and runs `gateau run` on it, which ends with
the report. Run it again and nothing is computed again; killed in the middle, it goes on where it was.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from build_pair import STEPS_LONG, STEPS_SHORT, Recipe, build_pair
from rich.console import Console
from stand_ins import make_stand_ins

from gateau_dagster.errors import GateauError
from gateau_dagster.methods.registry import GATEAU, all_methods
from gateau_dagster.storage.local import write_if_other
from gateau_dagster.storage.remote import is_remote

SETTINGS = Path(__file__).with_name("gateau.yaml")
ALL_METHODS = Path(__file__).with_name("all_methods.yaml")
# A model of another family: it only has to differ, so it learns less.
OTHER = {"vocabulary": 1024, "steps_short": 60, "steps_long": 1}
MINUTES = "about 5 minutes on two cores for 140 documents, two of them for the pair"


def address(path: str) -> str:
    """A local path or glob made absolute, for the configuration lies in another folder; s3://, hf:// and names stay."""
    local = Path(path).expanduser()
    hub_name = path.count("/") == 1 and not set(path) & set("*?[") and not (local.exists() or local.parent.is_dir())
    return path if is_remote(path) or hub_name else str(local.absolute())


def configuration(settings: Path, *, long: str, short_chat: str | None) -> dict[str, Any]:
    """The settings with the data's paths."""
    content: dict[str, Any] = yaml.safe_load(settings.read_text(encoding="utf-8"))
    content["long_sft"]["path"] = address(long)
    chat = content.pop("short_chat", {})
    if short_chat is not None:
        content["short_chat"] = {**chat, "path": address(short_chat)}
    return content


def with_all_methods(content: dict[str, Any]) -> dict[str, Any]:
    """The configuration with every method of the project in `selection.compare`.

    Three need what only you have: `judge` a server, in the settings' `evaluation.judge`, `target` the sources that
    samples are to be like, in their `selection.options.target.sources`, and `scores` a file of another program.
    Without it they are left out.
    """
    more: dict[str, Any] = yaml.safe_load(ALL_METHODS.read_text(encoding="utf-8"))
    selection: dict[str, Any] = content["selection"]
    options = {name: {**given, **selection.get("options", {}).get(name, {})} for name, given in more["options"].items()}
    left_out = {selection.get("method", GATEAU)} | ({"scores"} - options.keys())
    left_out |= set() if "judge" in content["evaluation"] else {"judge"}
    left_out |= set() if options["target"].get("sources") else {"target"}
    names = [name for name in all_methods() if name not in left_out]
    chosen = {name: given for name, given in options.items() if name not in left_out}
    return content | {
        "models": content["models"] | more["models"],
        "selection": selection | {"compare": names, "options": {**selection.get("options", {}), **chosen}},
    }


def main() -> int:
    """Pair, configuration, pipeline; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", required=True, help="long samples, in any form that long_sft.path takes")
    parser.add_argument("--short-chat", help="short conversations (ShareGPT, UltraChat) to mix into the training")
    parser.add_argument("--out", type=Path, default=Path("build/example-real"), help="default: %(default)s")
    parser.add_argument("--all-methods", action="store_true", help="compare every method: 15 minutes more")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="default: the gateau.yaml beside this file")
    parser.add_argument("--steps-short", type=int, default=STEPS_SHORT, help="of theta_A (%(default)s)")
    parser.add_argument("--steps-long", type=int, default=STEPS_LONG, help="of theta_B (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"The real example into {options.out}: the first time {MINUTES}")
    recipe = Recipe(steps_short=options.steps_short, steps_long=options.steps_long, seed=options.seed)
    try:
        build_pair(address(options.long), options.out / "pair", recipe, console)
        content = configuration(options.settings, long=options.long, short_chat=options.short_chat)
        if options.all_methods:
            other = Recipe(seed=options.seed + 1, **OTHER)
            build_pair(address(options.long), options.out / "other", other, console)
            make_stand_ins(options.out / "pair" / "short", options.out / "stand_ins")
            content = with_all_methods(content)
    except GateauError as error:
        console.print(f"Error: {error}", style="red", markup=False)
        return 1
    file = options.out.absolute() / "gateau.yaml"
    said = "# Written by examples/real/run.py.\n"
    write_if_other(file, said + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    console.print(f"Configuration: {file}\n$ gateau run --config {file}")
    command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
