"""Runs the whole pipeline on a real pretrained model and real text of which it is known what needs far context.

    .venv/bin/python examples/pretrained/run.py --model HuggingFaceTB/SmolLM2-135M-Instruct

It makes samples of Natural Questions whose evidence stands far or near (OUT/long.jsonl, by benchmarks/real_text.py),
writes the configuration (OUT/gateau.yaml) and runs `gateau run` on it, which ends with the report and with how well the
selection found the samples that need far text. Run it again and nothing is computed again.
"""

import argparse
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

import yaml
from rich.console import Console

from gateau_dagster.storage.local import write_if_other

SETTINGS = Path(__file__).with_name("gateau.yaml")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
QUESTIONS = "https://raw.githubusercontent.com/nelson-liu/lost-in-the-middle/main/qa_data/nq-open-oracle.jsonl.gz"
TOKENS = 1024  # of a context
MINUTES = "about ten minutes on two cores for a model of 135 M parameters"


class ExampleError(Exception):
    """An error that the user can correct, in a sentence."""


def model_path(model: str) -> str:
    """A folder made absolute, for the configuration lies in another one; a hub name as it is."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.absolute())
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ExampleError(f"{model} is neither a folder nor the name of a model on the hub, such as {MODEL}")
    return model


def questions(given: Path | None, out: Path) -> Path:
    """The file of questions: the given one, else the public one, fetched once."""
    if given is not None:
        if not given.is_file():
            raise ExampleError(f"{given} is not there: give a file as benchmarks/real_text.py takes it, or none")
        return given
    file = out / "natural_questions.jsonl.gz"
    if not file.exists():
        scratch = file.with_name(f".{file.name}.{os.getpid()}.part")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(QUESTIONS, timeout=60) as answer:
                scratch.write_bytes(answer.read())
        except (URLError, TimeoutError, OSError) as error:
            scratch.unlink(missing_ok=True)
            raise ExampleError(
                f"the questions cannot be fetched from {QUESTIONS} ({error}): fetch them on a machine that can, and "
                "give the file: --questions, or make example-pretrained NQ=file"
            ) from error
        scratch.replace(file)
    return file


def make_samples(options: argparse.Namespace, model: str, window: int, out: Path) -> None:
    """OUT/long.jsonl, unless it was made for the same arguments; the kinds stand in it as `source`."""
    command = [str(BENCHMARKS / "real_text.py"), "--nq", str(questions(options.questions, out)), "--tokenizer", model]
    command += ["--tokens", str(TOKENS), "--window", str(window), "--per-kind", str(options.per_kind)]
    command += ["--seed", str(options.seed), "--fold", "report", "--out", str(out / "long.jsonl")]
    made, asked = out / "long.jsonl.made", "\n".join(command[1:])
    if made.exists() and made.read_text(encoding="utf-8") == asked and (out / "long.jsonl").exists():
        return
    if subprocess.run([sys.executable, *command], check=False).returncode:
        raise ExampleError(f"the samples could not be made: see above. {model} has to be a model with its tokenizer")
    made.write_text(asked, encoding="utf-8")


def far_kinds() -> list[str]:
    """The kinds that need far text, by the module that makes them."""
    sys.path.insert(0, str(BENCHMARKS))
    from real_text_kinds import FAR_KINDS

    return list(FAR_KINDS)


def configuration(model: str) -> dict[str, Any]:
    """The settings with the model and the kinds that are known to need far text."""
    content: dict[str, Any] = yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))
    for name in ("short", "long"):
        content["models"][name]["path"] = model
    content["selection"]["ground_truth"] = far_kinds()
    return content


def main() -> int:
    """Samples, configuration, pipeline; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help="hub name or folder (%(default)s)")
    parser.add_argument(
        "--questions", type=Path, help="Natural Questions as benchmarks/real_text.py takes them; fetched"
    )
    parser.add_argument("--out", type=Path, default=Path("build/example-pretrained"), help="default: %(default)s")
    parser.add_argument("--per-kind", type=int, default=2, help="samples of each of 17 kinds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"The pretrained example into {options.out}: the first time {MINUTES}")
    file = options.out.absolute() / "gateau.yaml"
    try:
        model = model_path(options.model)
        content = configuration(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        make_samples(options, model, content["models"]["short"]["window"], file.parent)
    except ExampleError as error:
        console.print(f"Error: {error}", style="red", markup=False)
        return 1
    said = "# Written by examples/pretrained/run.py.\n"
    write_if_other(file, said + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    console.print(f"Configuration: {file}\n$ gateau run --config {file}")
    command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
