"""How well every method finds the samples that need far context: AUROC and precision by kind, with intervals.

    .venv/bin/python benchmarks/selection.py --seeds 5 6 7 --out build/benchmarks/selection.json

For each seed: a pair of the synthetic language, a data set (the demo's five kinds, and those of harder.py in
gateau_dagster/demo), the tables that the methods ask for, and each method's scores. Pairs and tables are kept in
--folder, so that a run that was stopped, or a further method, computes only what is missing.

A kind's AUROC is of that kind against all kinds of the other label that are within the pair's reach, and once more
against its near counterpart where it has one; precision at a share is of data in which that kind is one half, and its
table is of --reference. A group's figures are of its own kinds, as they come. theta_B's probability is that of a
response token, exp(-mean NLL), of the mean response. Intervals (95 %) resample seeds and samples; with one seed,
samples alone. Seeds 0 to 4 were looked at when `robust` was chosen: report others. The last table is where another
method is better than --reference: it compares every method on every group and kind, more than 1,000 times, so that a
row of a small difference may be chance.
"""

import argparse
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common_case import add_case_options, cases_of, ready_pair
from common_groups import counterparts, groups
from common_harder import KINDS, needs_far_context
from common_measure import machine, say, show, write_json
from common_methods import asked, candidates, method_scores
from common_ranking import Figures, Task, difference, drawn_weights, estimates, measure, tasks_of
from common_selection import Tables
from pydantic import ValidationError
from selection_report import lost, printed

from gateau_dagster.demo.long_samples import KINDS as BASE_KINDS

SECONDS_PER_SEED = 240  # pair and tables, on one free core
FIGURES = ("auroc", "precision_10", "precision_20", "precision_40")
REFERENCE = "gateau[robust]"


def scores_of(known: list[Tables], wanted: Sequence[str] | None) -> tuple[dict[str, list[np.ndarray]], dict[str, str]]:
    """Scores by label, a vector a seed, and why some methods did not run."""
    found: dict[str, list[np.ndarray]] = {}
    missing: dict[str, str] = {}
    for label, method, options in candidates():
        if wanted and method not in wanted and label not in wanted:
            continue
        say(f"method {label}")
        try:
            ready = [asked(each.case, method, options) for each in known]
        except ValueError as error:  # what the configuration lacks
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            missing[label] = reason.removeprefix("Value error, ")
            say(f"  not run: {missing[label]}")
        else:
            found[label] = [method_scores(each, what) for each, what in zip(known, ready, strict=True)]
    return found, missing


def answers_known(known: Tables) -> dict[str, float]:
    """By kind: mean probability that theta_B, given everything, gives to each response token, exp(-mean NLL)."""
    perplexity = dict(known["perplexity/long"].select("sample_id", "perplexity").iter_rows())
    found: dict[str, list[float]] = {}
    for record in known.records:
        found.setdefault(record["source"], []).append(1 / perplexity[record["id"]])
    return {kind: float(np.mean(values)) for kind, values in found.items()}


def _mean(values: Iterable[float | None]) -> float:
    """Over the seeds that hold the kind."""
    return float(np.mean([each for each in values if each is not None]))


def questions(known: list[Tables]) -> tuple[list[Task], dict[str, bool]]:
    """The tasks of the groups and kinds that the data holds, and the kinds' labels."""
    sources = [[record["source"] for record in each.records] for each in known]
    present = {kind for source in sources for kind in source}
    labels = {kind: needs_far_context(kind) for kind in (*BASE_KINDS, *KINDS) if kind in present}
    reach = {kind for kind in present if kind not in KINDS or KINDS[kind].within_reach}
    asked_of = groups() | counterparts()
    named = {name: [kind for kind in kinds if kind in present] for name, kinds in asked_of.items()}
    return tasks_of(sources, labels, named, reach), labels


def evaluated(tasks: list[Task], scores: dict[str, list[np.ndarray]], draws: int) -> dict[str, dict[str, Figures]]:
    """Figures by method and task; all methods on the same resampled data."""
    found: dict[str, dict[str, Figures]] = {label: {} for label in scores}
    for task in tasks:
        weights = drawn_weights(task, draws=draws)
        for label, vectors in scores.items():
            found[label][task.name] = measure(task, vectors, weights)
    return found


def losses(found: dict[str, dict[str, Figures]], reference: str) -> list[dict[str, Any]]:
    """Where another method is better than the reference by more than the interval; nothing without a reference."""
    if reference not in found:
        return []
    worse = []
    for label, by_task in found.items():
        for name, figures in by_task.items() if label != reference else ():
            gap = difference(figures, found[reference][name])
            if gap.low > 0:
                worse.append({"task": name, "method": label, "difference": gap})
    return sorted(worse, key=lambda each: -each["difference"].value)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser)
    parser.add_argument("--alpha", type=float, help="weight of HMP in `gateau`; default: each preset's own")
    parser.add_argument("--methods", nargs="+", help="only these methods or labels, such as ladm or gateau[paper]")
    parser.add_argument("--columns", nargs="+", default=[REFERENCE, "gateau[paper]", "hmg[official]", "perplexity"])
    parser.add_argument("--reference", default=REFERENCE, help="the label that others are compared with, pair by pair")
    parser.add_argument("--draws", type=int, default=400, help="of the bootstrap")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    return parser


def main(given: list[str] | None = None) -> int:
    """Parse, announce the time, measure, print, write."""
    arguments = _options().parse_args(given)
    cases = [replace(case, alpha=arguments.alpha) for case in cases_of(arguments)]
    say(
        f"{len(cases)} seeds, at most {len(cases) * SECONDS_PER_SEED / 60:.0f} minutes on a core if nothing is kept yet"
    )
    started = time.perf_counter()
    for case in cases:
        ready_pair(case)
    known = [Tables(case) for case in cases]
    scores, missing = scores_of(known, arguments.methods)
    tasks, labels = questions(known)
    found = evaluated(tasks, scores, arguments.draws)
    answers = [answers_known(each) for each in known]
    known_of = {kind: _mean(each.get(kind) for each in answers) for kind in labels}
    printed(found, tasks, columns=arguments.columns, reference=arguments.reference, answers=known_of)
    worse = losses(found, arguments.reference)
    if arguments.reference in found:
        show(lost(worse, found, arguments.reference))
    for label, reason in missing.items():
        show(f"not run: {label}: {reason}")
    settings = {name: value for name, value in vars(arguments).items() if name not in {"out", "folder"}}
    write_json(arguments.out, {
        "settings": settings,
        "machine": machine(),
        "seconds": time.perf_counter() - started,
        "kinds": {kind: _about(kind) for kind in labels},
        "probability_of_response": answers,
        "unscored": {label: [int(np.isneginf(each).sum()) for each in vectors] for label, vectors in scores.items()},
        "not_run": missing,
        "methods": {
            label: {name: dict(zip(FIGURES, estimates(figures), strict=True)) for name, figures in by_task.items()}
            for label, by_task in found.items()
        },
        "better_than_reference": worse,
    })  # fmt: skip
    return 0


def _about(kind: str) -> dict[str, Any]:
    if kind not in KINDS:
        return {"group": "base", "needs_far_context": needs_far_context(kind)}
    about = KINDS[kind]
    return {
        "group": about.group,
        "needs_far_context": about.needs_far_context,
        "why": about.why,
        "within_reach": about.within_reach,
    }


if __name__ == "__main__":
    raise SystemExit(main())
