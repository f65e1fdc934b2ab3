"""Does a selection train a better model than as much random data? The experiment of examples/experiment.

    .venv/bin/python benchmarks/experiment.py --nq natural_questions.jsonl.gz --model FOLDER_OR_NAME --size cpu \
        --folder build/experiment --out build/benchmarks/experiment_cpu.json

plan.yaml says what is tested, and was written before a model answered. For each pool, the samples are made from the
half `choose` of the questions and the held-out samples from the half `report`. Then all arms are trained and measured,
seed by seed, by `gateau run`. Call it again to continue; it prints which models are left, and the minutes. Nothing is
compared before the last model of a pool has answered; then the pool's figures are written. --power prints what the
sizes can show, and runs nothing.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import polars as pl
import real_text
import yaml
from common import benchmark_parser, machine, say, settings_of, write_json
from real_text_kinds import FAR_KINDS, KINDS, NEEDS
from real_text_passages import Passages, read_questions

from gateau_dagster.api import Project
from gateau_dagster.config.variants import BASE
from gateau_dagster.features.estimates.power import detectable
from gateau_dagster.features.evaluation.statistics.compare import TAIL, Matrix, VarianceSource, half_width, holm, paired
from gateau_dagster.features.evaluation.statistics.experiment import lines_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.storage.local import write_if_other

EXAMPLE = Path(__file__).parents[1] / "examples" / "experiment"
SCORES = "scores/answer_loss"
ANSWER, EVIDENCE = " answer", " evidence"
"""The endings of the questions on a sample's answer, and on the answer with the evidence only."""
_NEED_OF = {kind: need for need, kinds in NEEDS.items() for kind in kinds}
Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """A size of plan.yaml, which has its keys; `name` is its own. `questions`: follow-ups and all."""

    name: str
    tokens: int
    window: int
    pools: Mapping[str, Mapping[str, int]]
    heldout: Mapping[str, int]
    seeds: int
    seconds: Mapping[str, float]
    short: int = 0
    follow_ups: int = 0
    questions: Mapping[str, int] = field(default_factory=dict)
    arms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    benchmarks: Sequence[str] = ("answer_loss",)
    scoring: Mapping[str, Any] = field(default_factory=dict)
    selection: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


def read_plan(file: Path) -> tuple[Json, dict[str, Size]]:
    """Return the plan, and its sizes by name."""
    plan = yaml.safe_load(file.read_text(encoding="utf-8"))
    return plan, {name: Size(name=name, **keys) for name, keys in plan["sizes"].items()}


def power(plan: Json, size: Size) -> list[Json]:
    """Return the smallest difference of two arms on far text that is seen in four of five experiments.

    `half_width` is that of the 95 % interval, in nats. The assumed spread of the seeds is that of two models whose
    seeds have nothing in common, so pairs may show less.
    """
    found = []
    for name, assumed in plan["assumed"].items():
        seeds = VarianceSource(
            variance=np.array([2 * assumed["seeds"] ** 2 / size.seeds]), freedom=np.array([size.seeds - 1.0])
        )
        questions = (size.questions or size.heldout)["far"]
        difference = detectable(questions, assumed["questions"], seeds)
        of_questions = np.array([assumed["questions"] ** 2 / questions])
        width = half_width([VarianceSource(variance=of_questions, freedom=np.array([np.inf])), seeds], TAIL)
        found.append({"spread": name, "questions": questions, "seeds": size.seeds, "difference": difference})
        found[-1]["half_width"] = float(width[0])
    return found


def hours(size: Size, arms: Mapping[str, int]) -> float:
    """Return about how many hours of one core or GPU a size takes; `arms`: how many models each pool has per seed.

    Each pool has the single run as one more model, and its base model is measured, too. Pools share scored samples.
    """
    trained = sum(size.seeds * count + 1 for count in arms.values())
    steps = trained * (size.training["max_steps"] * size.seconds["step"] + size.seconds.get("start", 0))
    heldout = (trained + len(arms)) * sum(size.heldout.values()) * size.seconds["heldout"]
    scored = sum(max(pool[need] for pool in size.pools.values()) for need in NEEDS) * size.seconds["scored"]
    return (steps + heldout + scored) / 3600


# Samples and configuration.


def short_conversations(nq: str, count: int) -> list[Json]:
    """Return `count` short conversations of the half `choose`; every second one shows the passage that answers."""
    askable = Passages(read_questions(Path(nq)), "choose").askable
    made = []
    for number, question in enumerate(Random(0).sample(askable, count)):
        asked = f"{question.passage}\n\n{question.text}" if number % 2 else question.text
        turns = [{"from": "human", "value": asked}, {"from": "gpt", "value": question.answer}]
        made.append({"id": f"short-{number}", "conversations": turns})
    return made


def prepare(folder: Path, *, model: str, nq: str, size: Size, pool: str, example: Path = EXAMPLE) -> Path:
    """Write samples, configuration and benchmarks of a pool into `folder`; return the configuration's path."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        "pool.jsonl": ("choose", size.pools[pool], 0),
        "questions.jsonl": ("report", size.heldout, size.follow_ups),
    }
    settings = json.dumps([model, nq, wanted, size.tokens, size.window, size.short])
    file = folder / "settings.json"
    if file.exists() and file.read_text(encoding="utf-8") != settings:
        raise SystemExit(f"{folder} holds samples of other settings: give the same ones, or another --folder")
    write_if_other(file, settings)
    for name, (fold, needs, follow_ups) in wanted.items():
        if not (folder / name).exists():
            given = {"nq": nq, "tokenizer": model, "tokens": size.tokens, "window": size.window, "fold": fold}
            words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
            counts = [*(f"{need}={count}" for need, count in needs.items()), "--follow-ups", str(follow_ups)]
            if real_text.main([*words, "--samples", *counts, "--out", str(folder / name)]):
                raise SystemExit(1)
    write_if_other(folder / "short.json", json.dumps(short_conversations(nq, size.short), ensure_ascii=False))
    write_if_other(folder / "own_answers.py", (example / "own_answers.py").read_text(encoding="utf-8"))
    content = configuration(example, size, pool, size.seeds)
    for section in content["models"].values():
        section["path"] = str(Path(model).absolute()) if Path(model).is_dir() else model
    write_if_other(folder / "gateau.yaml", yaml.safe_dump(content, sort_keys=False))
    return folder / "gateau.yaml"


def configuration(example: Path, size: Size, pool: str, seeds: int) -> Json:
    """Return the example's configuration with the size's keys, the pool's arms and so many seeds."""
    content: Json = yaml.safe_load((example / "gateau.yaml").read_text(encoding="utf-8"))
    content["models"]["short"]["window"] = size.window
    for section in ("scoring", "selection", "training"):
        content[section] |= getattr(size, section)
    if not size.short:
        del content["short_chat"]
    content["evaluation"]["benchmarks"] = [*size.benchmarks]
    content["variants"]["seeds"] = [*range(seeds)]
    arms = size.arms.get(pool)
    content["variants"]["also"] = [each for each in content["variants"]["also"] if arms is None or each["name"] in arms]
    return content


def with_seeds(config: Path, seeds: int) -> Project:
    """Write the first `seeds` seeds into a configuration, which leaves the models of these as they are, and open it."""
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    content["variants"]["seeds"] = [*range(seeds)]
    write_if_other(config, yaml.safe_dump(content, sort_keys=False))
    return Project(config)


def share_tables(source: Path, target: Path) -> None:
    """Copy the tables of scores of another pool's store, whose rows are kept for the samples that both have."""
    if source.exists() and not target.exists():
        made = ("variant", "scores", "answers", "checkpoint", "training_mix*", "selected_subset*", "report*")
        part = target.with_name(f"{target.name}.part")  # a copy that was stopped is made again
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part, ignore=shutil.ignore_patterns(*made))
        part.rename(target)


def run(folder: Path, *, model: str, nq: str, size: Size, example: Path = EXAMPLE) -> Iterator[tuple[str, Project]]:
    """Train and measure what is missing, seed by seed; yield each pool once all of its models have answered."""
    configs = {
        pool: prepare(folder / pool, model=model, nq=nq, size=size, pool=pool, example=example) for pool in size.pools
    }
    total = sum(2 + size.seeds * len(arms_of(Project(config))) for config in configs.values())
    first, rates, answered = next(iter(configs.values())), list[float](), 0
    for pool, config in configs.items():
        if config != first:
            share_tables(first.with_name("store"), config.with_name("store"))
        for seeds in range(1, size.seeds + 1):
            project, started = with_seeds(config, seeds), time.monotonic()
            before = measured(project)
            if len(before) < len(project.config.variant_set):
                for benchmark in size.benchmarks:
                    project.run(until=f"scores/{benchmark}")
            new = len(measured(project) - before)
            if new and seeds > 1:  # the first seed also scores the pool
                rates.append((time.monotonic() - started) / new)
            done = answered + len(measured(project))
            minutes = f", about {(total - done) * rates[-1] / 60:.0f} minutes" if rates else ""
            say(f"{pool}, seed {seeds - 1}: {done} of {total} models have answered, {total - done} are left{minutes}")
        answered += len(measured(project))
        yield pool, Project(config)


def arms_of(project: Project) -> list[str]:
    """Return the names of the models that are trained with several seeds."""
    return [line.name for line in lines_of(project.config) if line.series]


def measured(project: Project) -> set[str]:
    """Return the variants that have answered."""
    state = state_of(config=project.config)
    return {name for name in project.config.variant_set if state.stamp(SCORES, name) is not None}


# What the values show.


@dataclass(frozen=True, kw_only=True)
class Values:
    """The losses of all models of a pool.

    records: the held-out samples. scores: by variant, the values by question. seeds: how many each arm has.
    """

    records: Sequence[Json]
    scores: Mapping[str, Mapping[str, float]]
    seeds: int

    @classmethod
    def of(cls, project: Project, config: Path, seeds: int) -> "Values":
        """Read them from the store."""
        store, names = state_of(config=project.config).store, [*project.config.variant_set]
        tables = {name: store.read(SCORES, name, ["question_id", "value"]) for name in names}
        lines = config.with_name("questions.jsonl").read_text(encoding="utf-8").splitlines()
        scores = {name: dict(table.iter_rows()) for name, table in tables.items()}
        return cls(records=[json.loads(line) for line in lines], scores=scores, seeds=seeds)

    @cached_property
    def columns(self) -> dict[str, dict[str, list[str]]]:
        """Return by form `sample_id`, `kind`, `need` (far, near or none) and `page` of the samples that have it.

        Forms are the loss on all tokens, on those of the answer, and on these with the evidence only.
        """
        found = {}
        for form in ("", ANSWER, EVIDENCE):
            chosen = [each for each in self.records if f"{each['sample_id']}{form}" in self.scores[BASE]]
            rows = [(each["sample_id"], each["source"], _NEED_OF[each["source"]], each["page"]) for each in chosen]
            names = ("sample_id", "kind", "need", "page")
            found[form] = {name: [row[place] for row in rows] for place, name in enumerate(names)}
        return found

    def matrix(self, arm: str, form: str = "") -> Matrix:
        """Return the losses [seeds, samples] of the samples that have this form."""
        names = [BASE] * self.seeds if arm == BASE else [f"{arm}-s{seed}" for seed in range(self.seeds)]
        ids = [f"{each}{form}" for each in self.columns[form]["sample_id"]]
        return np.array([[self.scores[name][each] for each in ids] for name in names])

    def paired(
        self, differences: Matrix, form: str = "", *, shares: Mapping[str, float] | None = None, kind: str = ""
    ) -> Json:
        """Return the mean of differences [seeds, samples] by what samples need, or of one kind of sample.

        As JSON: value, low and high, p, and what it rests on.
        """
        groups = self.columns[form]["kind" if kind else "need"]
        found = paired(differences, groups, self.columns[form]["page"], shares={kind: 1.0} if kind else shares)
        interval = [found.difference.value, found.difference.low, found.difference.high]
        return {"difference": interval, "p": found.p, "seeds": found.seeds, "pages": found.clusters}


def shares_of(pool: Mapping[str, int], far: float | None = None) -> dict[str, float]:
    """Return the shares of a pool by need; with `far`, that share of far text, and the others in proportion."""
    total, rest = sum(pool.values()), sum(count for need, count in pool.items() if need != "far")
    if far is None:
        return {need: count / total for need, count in pool.items()}
    return {need: far if need == "far" else (1 - far) * count / rest for need, count in pool.items()}


def compared(values: Values, plan: Json, pool: Mapping[str, int], arms: Sequence[str]) -> dict[str, Json]:
    """Return the differences of each arm to the reference; `plan`: plan.yaml.

    Per arm: `primary`, `use` and `pool` (differences of the loss on all response tokens with these weights), `guard`
    (the difference over the use less the margin: its upper end decides), `by_need`, `by_kind`, `gap`,
    `gap_difference` (of the gap, far less near) and `spread` (of the primary difference).
    """
    reference, margin = plan["reference"], plan["guard"]["margin"]
    use, of_pool = shares_of(pool, plan["guard"]["use"]), shares_of(pool)
    losses, answers, alone = (
        {arm: values.matrix(arm, form) for arm in {BASE, reference, *arms}} for form in ("", ANSWER, EVIDENCE)
    )
    is_far = np.array(values.columns[ANSWER]["need"]) == "far"
    gained, kinds = losses[BASE] - losses[reference], {*values.columns[""]["kind"]}
    found: dict[str, Json] = {}
    for arm in [BASE, *arms]:
        whole, answer = losses[arm] - losses[reference], answers[arm] - answers[reference]
        found[arm] = {
            "primary": values.paired(answer, ANSWER, shares={"far": 1.0}),
            "near_answers": values.paired(answer, ANSWER, shares={"near": 1.0}),
            "use": values.paired(whole, shares=use),
            "pool": values.paired(whole, shares=of_pool),
            "guard": values.paired(whole - margin * gained, shares=use),
            "by_need": {need: values.paired(whole, shares={need: 1.0}) for need in NEEDS if need in pool},
            "by_kind": {kind: values.paired(whole, kind=kind) for kind in KINDS if kind in kinds},
            "far_answers_by_kind": {
                kind: values.paired(answer, ANSWER, kind=kind) for kind in FAR_KINDS if kind in kinds
            },
            "gap": gap(values, answers[arm], alone[arm]),
            "gap_difference": gap(values, answer, alone[arm] - alone[reference])["far_less_near"],
            "spread": spread_of(answer[:, is_far]),
        }
    tested = [arm for arm in plan["primary"]["comparisons"] if arm in arms]
    corrected = holm(np.array([found[arm]["primary"]["p"] for arm in tested]))
    for arm, p in zip(tested, corrected, strict=True):
        found[arm]["primary"]["corrected_p"] = float(p)
    return found


def spread_of(differences: Matrix) -> Json:
    """Return the mean of differences [seeds, samples] of each seed, and the standard deviation over samples.

    The deviation is that of a sample's mean over the seeds, in nats.
    """
    by_seed = [float(mean) for mean in differences.mean(axis=1)]
    return {"by_seed": by_seed, "questions": float(differences.mean(axis=0).std(ddof=1))}


def gap(values: Values, answers: Matrix, alone: Matrix) -> Json:
    """Return the loss on answers that the rest of the text adds to the evidence alone: far, and far less near.

    answers, alone: losses [seeds, samples] of the forms ANSWER and EVIDENCE, or differences of two arms' losses.
    """
    both = np.isin(values.columns[ANSWER]["sample_id"], values.columns[EVIDENCE]["sample_id"])
    shares = {"far": {"far": 1.0}, "far_less_near": {"far": 1.0, "near": -1.0}}
    added = {name: values.paired(answers[:, both] - alone, EVIDENCE, shares=of) for name, of in shares.items()}
    return {name: each["difference"] for name, each in added.items()}


def verdicts(found: Mapping[str, Json], control: Mapping[str, Json] | None, plan: Json) -> dict[str, Any]:
    """Return which comparisons are significant, which keep the guard, and what noise and control say."""
    primary = {arm: each["primary"] for arm, each in found.items() if "corrected_p" in each["primary"]}
    level, within = plan["primary"]["level"], plan["control"]["within"]
    said: dict[str, Any] = {
        "lower_beyond_chance": [
            arm for arm, each in primary.items() if each["corrected_p"] <= level and each["difference"][0] < 0
        ],
        "keeps_the_guard": [
            arm for arm in primary if (high := found[arm]["guard"]["difference"][2]) is not None and high < 0
        ],
        "noise": found[plan["noise"]]["primary"]["difference"] if plan["noise"] in found else None,
    }
    if control is not None and "mix" in control:
        low, high = control["mix"]["primary"]["difference"][1:]
        if low is None or high is None or low <= -within <= high or low <= within <= high:
            said["control"] = "undecided"
        else:
            said["control"] = "within" if -within < low and high < within else "beyond"
    return said


def trained_on(project: Project, reference: str) -> dict[str, Json]:
    """Return samples, tokens and seconds of every trained variant, its far share, and how it nests in the reference.

    `nested`: the share of its samples that need no far text that the reference has too, with the same seed; None
    without such a sample.
    """
    store, found = state_of(config=project.config).store, {}
    for name, variant in project.config.variant_set.items():
        if variant.kind != "selected":
            continue
        made = store.read("variant/checkpoint", name).row(0, named=True)
        chosen, other = (
            store.read("variant/selected_subset", each, ["sample_id", "source"])
            for each in (name, f"{reference}-s{variant.seed}")
        )
        others = chosen.filter(~pl.col("source").is_in(FAR_KINDS))
        nested = others.join(other, on="sample_id", how="semi").height / others.height if others.height else None
        facts = {key: made[key] for key in ("samples", "tokens", "seconds")}
        found[name] = facts | {"far": 1 - others.height / chosen.height, "nested": nested}
    return found


def main(given: list[str] | None = None) -> int:
    """Parse, run, compare, write."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--nq", help="questions with passages: see the help of real_text.py")
    add("--model", help="folder or hub name")
    add("--folder", type=Path, default=Path("build/experiment"), help="for samples, configuration and store")
    add("--size", default="cpu", help="a size of plan.yaml")
    add("--example", type=Path, default=EXAMPLE, help="folder with plan.yaml, gateau.yaml and own_answers.py")
    add("--power", action="store_true", help="print what the size can show, and run nothing")
    options = parser.parse_args(given)
    plan, sizes = read_plan(options.example / "plan.yaml")
    if options.size not in sizes:
        parser.error(f"--size: expected one of {', '.join(sizes)}")
    size = sizes[options.size]
    powers = power(plan, size)
    for each in powers:
        amount = f"{each['questions']} far samples and {each['seeds']} seeds"
        say(f"{size.name}: {amount} show a difference of {each['difference']:.3f} NLL ({each['spread']} spread)")
    contents = {pool: configuration(options.example, size, pool, size.seeds) for pool in size.pools}
    arms = {pool: 1 + len(content["variants"]["also"]) for pool, content in contents.items()}
    say(f"{size.name}: about {hours(size, arms):.1f} hours of one core or GPU in all")
    if options.power:
        return 0
    if options.nq is None or options.model is None:
        parser.error("--nq and --model are needed, unless --power is given")
    folder = options.folder.absolute() / size.name
    settings = settings_of(options, "nq", "folder", "example") | {"model": Path(options.model).name}
    found: Json = {"settings": settings, "plan": plan, "machine": machine(), "power": powers}
    found |= {"trained_on": {}, "results": {}}
    for pool, project in run(folder, model=options.model, nq=options.nq, size=size, example=options.example):
        values = Values.of(project, folder / pool / "gateau.yaml", size.seeds)
        found["results"][pool] = compared(values, plan, size.pools[pool], arms_of(project))
        found["trained_on"][pool] = trained_on(project, plan["reference"])
        found["verdicts"] = verdicts(found["results"]["main"], found["results"].get("control"), plan)
        write_json(options.out, found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
