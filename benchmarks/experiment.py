"""Does a selection train a better model than as much random data? The experiment of examples/experiment.

    .venv/bin/python benchmarks/experiment.py --nq natural_questions.jsonl.gz --model FOLDER_OR_NAME \
        --folder build/experiment --out build/benchmarks/experiment.json

It makes the pool of samples from the half `choose` of the questions and the held-out samples from the half `report`,
keeps what `gateau plan` expects the experiment to show, and runs `gateau run`. Call it again to continue. The JSON
holds the values of every model and their differences to random data, over all held-out samples and by their needs.
--config takes another configuration than the example's; --short adds short conversations to what every model is
trained on.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import real_text
import yaml
from common import benchmark_parser, machine, say, settings_of, write_json
from real_text_kinds import KINDS
from real_text_passages import Passages, read_questions

from gateau_dagster.api import Project
from gateau_dagster.assets.experiment import experiment_inputs
from gateau_dagster.evaluation.statistics.compare import Interval, Standing
from gateau_dagster.pipeline.state import State
from gateau_dagster.report.experiment import BenchmarkResult
from gateau_dagster.storage.local import write_if_other

EXAMPLE = Path(__file__).parents[1] / "examples" / "experiment"
SAMPLES = {"pool.jsonl": "choose", "questions.jsonl": "report"}
ALL = "all"


def short_conversations(nq: str, count: int) -> list[dict[str, Any]]:
    """Return `count` short conversations of the half `choose`; every second one shows the passage that answers."""
    askable = Passages(read_questions(Path(nq)), "choose").askable
    made = []
    for number, question in enumerate(Random(0).sample(askable, count)):
        asked = f"{question.passage}\n\n{question.text}" if number % 2 else question.text
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": question.answer}]
        made.append({"id": f"short-{number}", "conversations": turns})
    return made


def prepare(
    folder: Path,
    *,
    model: str,
    nq: str,
    per_kind: Mapping[str, int],
    tokens: int,
    window: int,
    base: Path = EXAMPLE / "gateau.yaml",
    short: int = 0,
) -> Path:
    """Write samples, configuration and benchmarks into `folder`; return the configuration's path."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.dumps([model, nq, dict(per_kind), tokens, window, *([short] if short else [])])
    file = folder / "settings.json"
    if file.exists() and file.read_text(encoding="utf-8") != settings:
        raise SystemExit(f"{folder} holds samples of other settings: give the same ones, or another --folder")
    write_if_other(file, settings)
    for name, fold in SAMPLES.items():
        if not (folder / name).exists():
            given = {"nq": nq, "tokenizer": model, "tokens": tokens, "window": window, "per-kind": per_kind[fold]}
            words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
            if real_text.main([*words, "--fold", fold, "--out", str(folder / name)]):
                raise SystemExit(1)
    content = yaml.safe_load(base.read_text(encoding="utf-8"))
    if short:
        write_if_other(folder / "short.json", json.dumps(short_conversations(nq, short), ensure_ascii=False))
        content["short_chat"] = {"path": "short.json"}
    for section in content["models"].values():
        section["path"] = str(Path(model).absolute()) if Path(model).is_dir() else model
    content["models"]["short"]["window"] = window
    write_if_other(folder / "gateau.yaml", yaml.safe_dump(content, sort_keys=False))
    write_if_other(folder / "own_answers.py", (EXAMPLE / "own_answers.py").read_text(encoding="utf-8"))
    return folder / "gateau.yaml"


def expected(config: Path) -> list[dict[str, Any]]:
    """Return what the first plan expected each benchmark to show."""
    file = config.with_name("power.json")
    if not file.exists():
        plan = [sys.executable, "-m", "gateau_dagster.cli", "plan", "--json", "--config", str(config)]
        found = json.loads(subprocess.run(plan, check=True, stdout=subprocess.PIPE, text=True).stdout)
        write_json(file, {"power": found["power"]}, announce=False)
    return json.loads(file.read_text())["power"]


def summary(project: Project) -> dict[str, Any]:
    """Return what each model was trained on, its values, and the sentences of the report."""
    inputs = experiment_inputs(State(config=project.config), project.table("experiment"))
    return {
        "reference": inputs.reference,
        "trained_on": {name: trained_on(project, name) for name in project.config.variant_set if name != "base"},
        "results": {result.name: dict(_by_group(result)) for result in inputs.results},
        "sentences": {result.name: result.against_chance for result in inputs.results},
    }


def trained_on(project: Project, variant: str) -> dict[str, Any]:
    """Return samples, tokens and seconds of a variant's training, and the share of chosen samples that need far text.

    Empty for a model that is not trained.
    """
    state = State(config=project.config)
    if variant not in state.pipeline.partitions("variant/selected_subset"):
        return {}
    made = state.store.read("variant/checkpoint", variant).row(0, named=True)
    chosen = project.selected() if variant == "checkpoint" else state.store.read("variant/selected_subset", variant)
    needs = [KINDS[source].needs_far for source in chosen["source"]]
    return {name: made[name] for name in ("samples", "tokens", "seconds")} | {"far": sum(needs) / max(1, len(needs))}


def _by_group(result: BenchmarkResult) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the standings over all questions, then by group."""
    rows = {row["variant"]: row for row in result.rows.iter_rows(named=True)}
    count = result.answered.questions.height
    values = {
        name: {
            "value": [row["value"], row["low"], row["high"]],
            "difference": [row[f"difference{end}"] for end in ("", "_low", "_high")],
        }
        for name, row in rows.items()
    }
    yield ALL, {"questions": count, "models": values}
    for grouping in result.groupings[:1]:
        for (name, size), standings in zip(grouping.groups, grouping.standings, strict=True):
            yield name, {"questions": size, "models": _standings(standings)}


def _standings(standings: Sequence[Standing]) -> dict[str, Any]:
    def ends(interval: Interval | None) -> list[float | None]:
        return [None] * 3 if interval is None else [interval.value, interval.low, interval.high]

    return {each.name: {"value": ends(each.total), "difference": ends(each.difference)} for each in standings}


def main(given: list[str] | None = None) -> int:
    """Parse, run, summarise, write."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--nq", required=True, help="questions with passages: see the help of real_text.py")
    add("--model", required=True, help="folder or hub name")
    add("--folder", type=Path, default=Path("build/experiment"), help="for samples, configuration and store")
    add("--tokens", type=int, default=512, help="of a context")
    add("--window", type=int, default=256, help="of theta_A, in tokens of the prompt")
    add("--pool", type=int, default=12, help="samples of each kind to choose from")
    add("--heldout", type=int, default=3, help="held-out samples of each kind")
    add("--config", type=Path, default=EXAMPLE / "gateau.yaml", help="training, selection, variants")
    add("--short", type=int, default=0, help="short conversations to train every model on as well")
    options = parser.parse_args(given)
    per_kind = {"choose": options.pool, "report": options.heldout}
    sizes = {"per_kind": per_kind, "tokens": options.tokens, "window": options.window}
    sizes |= {"base": options.config, "short": options.short}
    config = prepare(options.folder.absolute(), model=options.model, nq=options.nq, **sizes)
    power, project = expected(config), Project(config)
    project.run()
    found = summary(project)
    say("\n".join(sentence for sentences in found["sentences"].values() for sentence in sentences))
    settings = settings_of(options, "nq") | {"model": Path(options.model).name}
    settings["training"] = yaml.safe_load(options.config.read_text(encoding="utf-8")).get("training", {})
    write_json(options.out, {"settings": settings, "machine": machine(), "power": power, **found})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
