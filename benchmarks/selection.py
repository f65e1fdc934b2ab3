"""Measure how well every method finds the samples that need far context: AUROC and precision by kind, with intervals.

    .venv/bin/python benchmarks/selection.py --seeds 10 11 12 --out build/benchmarks/selection.json

For each seed: a pair of the synthetic language, a data set (the demo's five kinds, and those of kinds.py), the tables
that the methods ask for, and each method's scores. Pairs and tables are kept in --folder, so that a stopped
run, or another method, computes only the missing ones.

A kind's AUROC is of that kind against all kinds of the other label that are within the pair's reach, and once more
against its near counterpart where it has one; precision at a share is of data in which that kind is one half, and its
table is of --reference. A group's figures cover its kinds, as they come. theta_B's probability is that of a
response token, exp(-mean NLL), of the mean response. Intervals (95 %) resample seeds and samples; with one seed,
samples alone. Seeds 0 to 9 were looked at before: report others. The last table is where another
method is better than --reference: it compares every method on every group and kind, more than 1,000 times, so that a
row of a small difference may be chance.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import benchmark_parser, machine, say, settings_of, show, table, write_json
from common_ranking import SHARES, ByTask, Figures, Task, difference, estimates, evaluated, named_estimates, tasks_of
from common_selection import REFERENCE, LabelledCase, Record, Tables, answers_known, scores_of
from kinds import KINDS, counterparts, groups, harder_samples, needs_far_context
from transformers import LlamaForCausalLM

from gateau_dagster.features.demo.language import build_tokenizer
from gateau_dagster.features.demo.pair import build_pair, pair_config, pair_is_current
from gateau_dagster.features.demo.prepare import KINDS as BASE_KINDS
from gateau_dagster.features.demo.prepare import demo_samples

SECONDS_PER_SEED = 240  # pair and tables, on one free core
DATA_SEEDS = 1000  # added to a pair's seed: no sample was made with the numbers that trained the pair
STRANGER = 40  # the pair whose theta_A stands for a model of another family
DEMONSTRATIONS = [
    {"instruction": "note colour colour-1 . note metal metal-2 . recall colour", "response": "colour colour-1 ."},
    {"instruction": "tell about baker", "response": "the baker builds the garden of quiet ."},
    {"instruction": "note gem gem-5 . recall gem", "response": "gem gem-5 ."},
]
_SHARES = [f"{share:.0%}".replace("%", " %") for share in SHARES]


@dataclass(frozen=True, kw_only=True)
class Case(LabelledCase):
    """One pair of the synthetic language and one data set."""

    pair_seed: int
    data_seed: int
    per_kind: int = 16
    base: int = 100
    kinds: tuple[str, ...] | None = None
    untrained: bool = False  # for tests of the benchmark itself

    @property
    def name(self) -> str:
        """The name in progress messages."""
        return f"pair {self.pair_seed}"

    def pair_of(self, seed: int) -> Path:
        """Return the folder of a pair."""
        return self.folder / "pairs" / f"{'untrained' if self.untrained else 'seed'}{seed}"

    def records(self) -> list[Record]:
        """Return samples of the demo's five kinds and of the other ones."""
        kinds = list(KINDS) if self.kinds is None else [kind for kind in self.kinds if kind in KINDS]
        more = harder_samples(self.per_kind * len(kinds), self.data_seed, kinds=kinds) if kinds else []
        return demo_samples(self.base, self.data_seed) + more

    def models(self) -> dict[str, Any]:
        """Return the pair; its theta_A within its window; another pair's; and both models behind demonstrations."""
        pair = self.pair_of(self.pair_seed)
        short, long = ({"path": str((pair / name).absolute())} for name in ("short", "long"))
        sight = {"context": "window"}
        return {
            "short": short | sight,
            "long": long,
            "unextended": short | sight,
            "stranger": {"path": str((self.pair_of(STRANGER) / "short").absolute())} | sight,
            "shown_short": short | sight | {"demonstrations": DEMONSTRATIONS},
            "shown_long": long | {"demonstrations": DEMONSTRATIONS},
        }

    def scoring(self) -> dict[str, Any]:
        """Return the length that theta_B reads."""
        return {"max_length": 2048}


def ready_pair(case: Case) -> None:
    """Build the case's pair and the one of `stranger` unless they exist: a CPU minute each."""
    for seed in (case.pair_seed, STRANGER):
        folder = case.pair_of(seed)
        if case.untrained:
            for name, window in (("short", 256), ("long", 2048)):
                torch.manual_seed(seed)
                LlamaForCausalLM(pair_config(window, 1e4)).save_pretrained(folder / name)
                build_tokenizer(window).save_pretrained(folder / name)
        elif not pair_is_current(folder, seed=seed):
            say(f"pair {seed}: building, about a minute")
            build_pair(folder, seed=seed)


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Return one case per seed."""
    names = ("folder", "per_kind", "base", "segment_length")
    same: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    same |= {"kinds": tuple(arguments.kinds) if arguments.kinds else None, "untrained": arguments.tiny}
    return [Case(pair_seed=seed, data_seed=DATA_SEEDS + seed, **same) for seed in arguments.seeds]


def questions(known: list[Tables]) -> tuple[list[Task], dict[str, bool]]:
    """Return the tasks of the groups and kinds in the data, and the kinds' labels."""
    sources = [[record["source"] for record in each.records] for each in known]
    present = {kind for source in sources for kind in source}
    labels = {kind: needs_far_context(kind) for kind in (*BASE_KINDS, *KINDS) if kind in present}
    reach = {kind for kind in present if kind not in KINDS or KINDS[kind].within_reach}
    asked_of = groups() | counterparts()
    named = {name: [kind for kind in kinds if kind in present] for name, kinds in asked_of.items()}
    return tasks_of(sources, labels, named, reach), labels


def losses(found: dict[str, ByTask], reference: str) -> list[dict[str, Any]]:
    """Return where another method is better than the reference by more than the interval."""
    if reference not in found:
        return []
    worse = []
    for label, by_task in found.items():
        for name, figures in by_task.items() if label != reference else ():
            gap = difference(figures, found[reference][name])
            if gap.low > 0:
                worse.append({"task": name, "method": label, "difference": gap})
    return sorted(worse, key=lambda each: -each["difference"].value)


def printed(
    found: dict[str, ByTask],
    tasks: list[Task],
    *,
    columns: Sequence[str],
    reference: str,
    answers: Mapping[str, float],
) -> None:
    """Print methods by groups, then kinds by the chosen methods; answers: theta_B's probabilities by kind.

    The precision by kind is that of the reference, or of the best method where the reference was not asked for.
    """
    whole = [task for task in tasks if task.name in groups()]
    kinds = [task.name for task in tasks if task.name not in groups()]
    order = sorted(found, key=lambda label: -estimates(found[label][whole[-1].name])[0].value)
    rows = [[label, *(estimates(found[label][each.name])[0].show() for each in whole)] for label in order]
    show("AUROC of `needs far context` (95 % interval)\n" + table(["method", *(each.name for each in whole)], rows))
    show("\n" + precision_by_group(found, whole, order))
    rows = [[label, *_precisions(found[label][whole[-1].name])] for label in order]
    show(f"\nPrecision, {whole[-1].name} (95 % interval)\n" + table(["method", *_SHARES], rows))
    show("\n" + auroc_by_kind(found, kinds, [label for label in columns if label in found] or order[:4], answers))
    for label in [reference] if reference in found else order[:1]:
        show("\n" + precision_by_kind(found[label], kinds, label))


def precision_by_group(found: Mapping[str, ByTask], whole: Sequence[Task], order: Sequence[str]) -> str:
    """Return a table with a figure for each of SHARES per group; its first row is the share of what is looked for."""
    blind = [f"{blindly(task):.2f}" for task in whole]
    rows = [["drawn blindly", *blind]]
    for label in order:
        values = ([each.value for each in estimates(found[label][task.name])[1:]] for task in whole)
        rows.append([label, *(" ".join(f"{value:.2f}" for value in some) for some in values)])
    title = f"Precision in the best {', '.join(_SHARES)}, among a group's own kinds as they come\n"
    return title + table(["method", *(task.name for task in whole)], rows)


def blindly(task: Task) -> float:
    """Return the share of samples that need far context, the mean over the data sets."""
    return float(np.mean([positive.mean() for positive in task.positive]))


def auroc_by_kind(
    found: Mapping[str, ByTask], kinds: Sequence[str], shown: Sequence[str], answers: Mapping[str, float]
) -> str:
    """Return a table with a row per kind and a column per method."""
    rows = []
    for name in kinds:
        figures = [estimates(found[each][name])[0].show() for each in shown]
        rows.append([name, _needs(name), f"{answers[name]:.2f}" if name in answers else "", *figures])
    title = "AUROC by kind against the kinds of the other label; `or near`: against its near counterpart alone\n"
    return title + table(["kind", "needs", "theta_B's probability", *shown], rows)


def precision_by_kind(figures: ByTask, kinds: Sequence[str], label: str) -> str:
    """Return a table with a row per kind and a column per share."""
    rows = [[name, _needs(name), *_precisions(figures[name])] for name in kinds]
    title = f"Precision of {label} by kind, in data of which one half is that kind (0.5 drawn blindly; 95 % interval)\n"
    return title + table(["kind", "needs", *_SHARES], rows)


def lost(worse: Sequence[Mapping[str, Any]], found: dict[str, ByTask], reference: str) -> str:
    """Return `losses` as a table, with the AUROC of both."""
    if not worse:
        return f"\nNo method is better than {reference} on any group or kind by more than the interval"
    rows = []
    for each in worse:
        both = [estimates(found[label][each["task"]])[0].show() for label in (each["method"], reference)]
        rows.append([each["task"], each["method"], *both, each["difference"].show()])
    title = f"\nWhere another method is better than {reference} by more than the interval (AUROC)\n"
    return title + table(["group or kind", "method", "its AUROC", reference, "difference"], rows)


def _needs(name: str) -> str:
    if name in counterparts():
        return "far?"
    return "far" if needs_far_context(name) else "-"


def _precisions(figures: Figures) -> list[str]:
    return [each.show() for each in estimates(figures)[1:]]


def parse(given: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[10, 11, 12], help="of the pairs, and of the data + 1000")
    add("--per-kind", type=int, default=16)
    add("--base", type=int, default=100, help="samples of the demo's five kinds together")
    add("--kinds", nargs="+", help="only these of the other kinds")
    add("--segment-length", type=int, default=128)
    add("--folder", type=Path, default=Path("build/benchmarks/selection"), help="for pairs and tables")
    add("--tiny", action="store_true", help="untrained pairs: tests the benchmark, measures nothing")
    add("--methods", nargs="+", help="only these methods or labels, such as ladm or gateau[paper]")
    add("--columns", nargs="+", default=[REFERENCE, "gateau[paper]", "hmg[official]", "perplexity"])
    add("--reference", default=REFERENCE, help="the label that others are compared with, pair by pair")
    add("--draws", type=int, default=400, help="of the bootstrap")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Parse, announce the time, measure, print, write."""
    arguments = parse(given)
    cases = cases_of(arguments)
    minutes = len(cases) * SECONDS_PER_SEED / 60
    say(f"{len(cases)} seeds, at most {minutes:.0f} minutes on a core if nothing is kept yet")
    started = time.perf_counter()
    for case in cases:
        ready_pair(case)
    known = [Tables(case) for case in cases]
    scores, missing = scores_of(known, arguments.methods)
    tasks, labels = questions(known)
    found = evaluated(tasks, scores, arguments.draws)
    answers = [answers_known(each) for each in known]
    known_of = {kind: float(np.mean([each[kind] for each in answers if kind in each])) for kind in labels}
    printed(found, tasks, columns=arguments.columns, reference=arguments.reference, answers=known_of)
    worse = losses(found, arguments.reference)
    if arguments.reference in found:
        show(lost(worse, found, arguments.reference))
    for label, reason in missing.items():
        show(f"not run: {label}: {reason}")
    names = ("group", "needs_far_context", "why", "within_reach")
    base = {kind: {"group": "base", "needs_far_context": labels[kind]} for kind in labels}
    about = base | {kind: {name: getattr(KINDS[kind], name) for name in names} for kind in labels if kind in KINDS}
    write_json(arguments.out, {
        "settings": settings_of(arguments),
        "machine": machine(),
        "seconds": time.perf_counter() - started,
        "samples": sum(len(each.records) for each in known),
        "drawn_blindly": {task.name: blindly(task) for task in tasks if task.name in groups()},
        "kinds": about,
        "probability_of_response": answers,
        "unscored": {label: [int(np.isneginf(each).sum()) for each in vectors] for label, vectors in scores.items()},
        "not_run": missing,
        "methods": named_estimates(found),
        "better_than_reference": worse,
    })  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
