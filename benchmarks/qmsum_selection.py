"""Measure scores, dependencies and evidence on meetings whose relevant turns people marked.

    .venv/bin/python benchmarks/qmsum_selection.py --qmsum qmsum.jsonl.gz --models MODEL [MODEL ...] \
        --parts 84 --fold report --out build/benchmarks/qmsum_report.json

The samples are those of qmsum.py (its help says where --qmsum comes from). docs/evidence/qmsum.md says what is
measured. theta_B is the model itself, theta_A the same model whose prompt is cut to the window. A part is one sample of
`far`, one of `near` and two of the other kinds, in turns. The tables of a part are kept in --folder once it is scored,
so that a stopped run resumes with the part that it was at. With --minutes, a run starts no part after so many minutes,
and measures the parts that are scored. Intervals (95 %) resample meetings.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from common import benchmark_parser, machine, settings_of, show, table, write_json
from common_selection import PAIR_TABLES, JoinedTables, Tables, scores_of
from qmsum import KINDS, Record, drawn_samples, read_meetings
from real_selection import ALL, RealCase
from real_text_passages import FOLDS, Room, read_questions
from response_length import (
    RECALL,
    REFERENCE,
    Bools,
    Labelled,
    Pool,
    Vector,
    estimate,
    labelled,
    pair_auroc,
    segment_figures,
)

from gateau_dagster.config.selection import CLASSES, DependencyClass
from gateau_dagster.models.prompt import open_tokenizer
from gateau_dagster.selection.evidence import CLASS_OF, dependencies

PAIR, OTHERS = ("far", "near"), ("far_long", "other", "far_and_near", "whole")
# Those that need no other table than the pair's.
METHODS = ("gateau", "hmg", "cam", "information_gain", "perplexity", "random", "length", "response_length")
# The pairs of each AUROC: kinds that rank above, kinds that rank below.
TASKS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "far against near": (["far"], ["near"]),
    ALL: ([name for name, kind in KINDS.items() if kind.needs_far], ["near", "other"]),
    "far_long": (["far_long"], ["near"]),
    "far_and_near": (["far_and_near"], ["near"]),
    "whole": (["whole"], ["near"]),
    "other": (["far"], ["other"]),
}
MIXED_SEEDS = (200, 201)  # of today's kinds, as in response_length.py


@dataclass(frozen=True, kw_only=True)
class MeetingCase(RealCase):
    """A real model, theta_A's window, and a part of the meetings' samples. `nq` is the meetings' file."""

    part: int = 0
    kinds: tuple[str, ...] = tuple(KINDS)

    @property
    def name(self) -> str:
        """The name in progress messages."""
        return f"{self.setting}, part {self.part}"

    def labelled(self) -> list[Record]:
        """Return one sample of each kind of PAIR, and one of two of the others."""
        numbers = dict.fromkeys(PAIR, self.part)
        numbers |= dict.fromkeys(OTHERS[2 * (self.part % 2) :][:2], self.part // 2)
        found = list[Record]()
        for kind, number in numbers.items():
            made, others = _samples(replace(self, part=0))[kind]
            made += islice(others, max(0, number + 1 - len(made)))
            found += made[number : number + 1]
        return found


@cache
def _samples(case: MeetingCase) -> dict[str, tuple[list[Record], Iterator[Record]]]:
    """Return for each kind a list for the samples that were made, and the others, which are made one by one."""
    room = Room(tokenizer=open_tokenizer(case.model), tokens=case.tokens, window=case.window, template=case.template)
    drawn = drawn_samples(read_meetings(Path(case.nq)), room, fold=case.fold, seed=case.seed)
    return {kind: ([], samples) for kind, samples in drawn.items()}


def evidence_figures(segments: Sequence[int], gains: Sequence[float], marked: frozenset[int]) -> dict[str, float]:
    """Return 1 where one of the first k segments of evidence is marked, else 0: in their order, and by gain.

    Args:
        segments: of the column `evidence`, in its order.
        gains: of all segments.
        marked: the segments with a character of the marked turns.
    """
    orders = {"listed": list(segments), "by_gain": sorted(segments, key=lambda place: -gains[place])}
    return {
        f"{name}_{count}": float(not marked.isdisjoint(order[:count]))
        for name, order in orders.items()
        for count in RECALL
    } | {"evidence": float(len(segments) > 0)}


def measured(known: JoinedTables, records: Sequence[Record], draws: int, methods: Sequence[str]) -> dict[str, Any]:
    """Return the figures of all samples: AUROC by score and task, classes by kind, and evidence by kind."""
    samples = list(labelled(known, records, ALL, {}))
    assert len(samples) == len(records), "a sample is missing from a table"
    pool, kinds = Pool(samples=samples, draws=draws), np.array([record["source"] for record in records])
    by_method, _ = scores_of([known], methods)
    scores = dict(pool.scores) | {label: vector for label, (vector,) in by_method.items()}
    aurocs = {label: _aurocs(vector, kinds, pool.weights) for label, vector in scores.items()}
    depends = {row["sample_id"]: row for row in dependencies(known["cam"], known["perplexity/long"]).to_dicts()}
    of_sample = [depends[record["sample_id"]] for record in records]
    near = dict(known["cam"].select("sample_id", "near_segments").iter_rows())
    evidence = [
        _of_sample(row["segments"], sample, near[row["sample_id"]])
        for row, sample in zip(of_sample, samples, strict=True)
    ]
    return {
        "samples": {kind: int((kinds == kind).sum()) for kind in KINDS},
        "meetings": len({record["meeting"] for record in records}),
        "response_tokens": {
            kind: float(np.median([each.tokens.count for each, of in zip(samples, kinds, strict=True) if of == kind]))
            for kind in dict.fromkeys(kinds.tolist())
        },
        "auroc": {
            label: {task: estimate(values) for task, values in of.items()} for label, of in aurocs.items()
        },
        "difference": {
            label: {task: estimate(values - aurocs[REFERENCE][task]) for task, values in of.items()}
            for label, of in aurocs.items()
        },
        "dependency": _classes(of_sample, kinds),
        "evidence": _evidence(evidence, np.array([each.needs_far for each in samples]), kinds, pool.weights),
        "rows": [
            {
                "sample": record["sample_id"],
                "meeting": record["meeting"],
                "marked_turns": record["marked_turns"],
                "robust": round(float(score), 4),
                "dependency": row["dependency"],
                **{name: value for name, value in figures.items() if np.isfinite(value)},
            }
            for record, row, figures, score in zip(records, of_sample, evidence, scores["robust"], strict=True)
        ],
    }  # fmt: skip


def _of_sample(segments: Sequence[int], sample: Labelled, near: int) -> dict[str, float]:
    """Return the figures of evidence and segments of a sample with marked turns; none of another. near: its segments.

    `same_side` is the AUROC of far segments among far ones, and of near among near ones: the gain of a far segment is
    that beyond near text, and the gain of a near one that beyond no context. It is NaN without such a pair.
    """
    if not 0 < len(sample.marked) < len(sample.gains):
        return {}
    gains, places = np.array(sample.gains), np.arange(len(sample.gains))
    positive, side = np.isin(places, list(sample.marked)), places >= len(places) - near
    same_side = pair_auroc(gains, positive, side[positive][:, None] == side[~positive][None], np.ones((1, len(gains))))
    return {
        **evidence_figures(segments, sample.gains, sample.marked),
        **{f"segments_{name}": value for name, value in segment_figures(sample.gains, sample.marked).items()},
        "same_side": float(same_side[0]),
        "by_chance": len(sample.marked) / len(sample.gains),
    }


def _aurocs(scores: Vector, kinds: np.ndarray, weights: np.ndarray) -> dict[str, Vector]:
    """Return the AUROC of each task that has both sides: of all samples, then of each draw."""
    found: dict[str, Vector] = {}
    for task, (above, below) in TASKS.items():
        positive, other = np.isin(kinds, above), np.isin(kinds, below)
        if positive.any() and other.any():
            of = positive | other
            found[task] = pair_auroc(scores[of], positive[of], None, weights[:, of])
    return found


def _classes(rows: Sequence[Mapping[str, Any]], kinds: np.ndarray) -> dict[str, dict[DependencyClass, int]]:
    """Return the number of samples of each class of dependency, by kind."""
    counts = {kind: dict.fromkeys(CLASSES, 0) for kind in KINDS if kind in kinds}
    for row, kind in zip(rows, kinds, strict=True):
        counts[kind][CLASS_OF[row["dependency"]]] += 1
    return counts


def _evidence(
    figures: Sequence[Mapping[str, float]], far: Bools, kinds: np.ndarray, weights: np.ndarray
) -> dict[str, Any]:
    """Return means of the figures of evidence: of each kind with marked turns, and of all that need far text."""
    has = np.array([bool(each) for each in figures])
    groups: dict[str, Bools] = {"far evidence": has & far} | {kind: has & (kinds == kind) for kind in KINDS}
    found: dict[str, Any] = {}
    for group, members in groups.items():
        chosen = np.flatnonzero(members)
        if not chosen.size:
            continue
        found[group] = {"samples": len(chosen)}
        for name in figures[int(chosen[0])]:
            values = np.array([figures[place][name] for place in chosen.tolist()])
            drawn = weights[:, chosen] * np.isfinite(values)
            sums, total = drawn @ np.nan_to_num(values), drawn.sum(axis=1)
            found[group][name] = estimate(np.divide(sums, total, out=np.full(total.shape, np.nan), where=total > 0))
    return found


def mixed(samples: Sequence[Labelled], draws: int) -> dict[str, Any]:
    """Return the choice of each candidate from a pool of two groups, of as many samples as need far text.

    far: for each group, the chosen share of its far samples. Equal shares favour neither group.
    auroc: of all far samples against all others.
    """
    pool = Pool(samples=samples, draws=draws)
    far, group = (np.array([getattr(each, name) for each in samples]) for name in ("needs_far", "group"))
    found: dict[str, Any] = {"samples": {name: int((group == name).sum()) for name in dict.fromkeys(group.tolist())}}
    found["far"] = {name: int((far & (group == name)).sum()) for name in found["samples"]}
    for label, scores in pool.scores.items():
        ranked, shares = np.argsort(-scores, kind="stable"), {name: list[float]() for name in found["samples"]}
        for weights in pool.weights:
            order = np.repeat(ranked, weights[ranked])
            chosen = order[: int(far[order].sum())]
            for name, values in shares.items():
                all_far = (far & (group == name))[order].sum()
                values.append((far & (group == name))[chosen].sum() / all_far if all_far else np.nan)
        found.setdefault("candidates", {})[label] = {
            "auroc": estimate(pair_auroc(scores, far, None, pool.weights.astype(np.float64))),
            **{name: estimate(np.array(values)) for name, values in shares.items()},
        }
    return found


def printed(found: Mapping[str, Any]) -> None:
    """Print AUROC by score and task, classes by kind, and evidence by kind."""
    order = sorted(found["auroc"], key=lambda label: -found["auroc"][label][ALL].value)
    tasks = list(found["auroc"][order[0]])
    rows = [[label, *(found["auroc"][label][task].show() for task in tasks)] for label in order]
    show("\nAUROC (95 %)\n" + table(["score", *tasks], rows))
    rows = [[kind, *counts.values()] for kind, counts in found["dependency"].items()]
    show("\nClass of dependency\n" + table(["kind", *CLASSES], rows))
    for kind, figures in found["evidence"].items():
        values = (f"{name} {value if name == 'samples' else value.show()}" for name, value in figures.items())
        show(f"\nEvidence, {kind}: " + ", ".join(values))
    for label, figures in found.get("mixed", {}).get("candidates", {}).items():
        show(f"\nMixed pool, {label}: " + ", ".join(f"{name} {value.show()}" for name, value in figures.items()))


def main(given: list[str] | None = None) -> int:
    """Parse, score part by part, measure, print, write."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--qmsum", required=True, help="meetings: see the help of qmsum.py")
    add("--models", nargs="+", required=True, help="folders or hub names")
    add("--nq", help="questions of real_text.py, for a pool that mixes both")
    add("--mixed-seeds", type=int, default=1, help="data sets of today's kinds in that pool")
    add("--tokens", type=int, default=4096, help="of a context")
    add("--window", type=int, default=1024, help="of theta_A, in tokens of the prompt")
    add("--parts", type=int, default=84)
    add("--minutes", type=float, default=float("inf"), help="of a model, after which no part starts")
    add("--fold", choices=FOLDS, default="report", help="half of the meetings")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    add("--device", default="cpu", help="as scoring.device")
    add("--draws", type=int, default=1000, help="of the bootstrap")
    add("--methods", nargs="*", default=list(METHODS), help="names, or labels as gateau[paper]")
    add("--folder", type=Path, default=Path("build/benchmarks/qmsum"), help="for the tables")
    arguments = parser.parse_args(given)
    started, results = time.perf_counter(), dict[str, dict[str, Any]]()
    for model in arguments.models:
        results[Path(model).name] = _of_model(model, arguments)
        printed(results[Path(model).name])
    settings = settings_of(arguments, "nq", "qmsum", "minutes") | {"models": list(results)}
    about = {"settings": settings, "machine": machine(), "seconds": time.perf_counter() - started}
    write_json(arguments.out, about | {"results": results})
    return 0


def _of_model(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Score the parts, as many as the time allows, and return the figures of all of them."""
    started, cases, parts = time.perf_counter(), list[MeetingCase](), list[Tables]()
    same: dict[str, Any] = {name: getattr(arguments, name) for name in ("folder", "fold", "dtype", "device")}
    same["model"] = model
    size = {"tokens": arguments.tokens, "window": arguments.window}
    while len(parts) < arguments.parts:
        if parts and time.perf_counter() - started > 60 * arguments.minutes:
            break
        cases.append(MeetingCase(nq=arguments.qmsum, seed=0, part=len(parts), **size, **same))
        parts.append(Tables(cases[-1]))
        for asset in PAIR_TABLES:
            parts[-1][asset]
    joined, records = JoinedTables(parts), [record for case in cases for record in case.labelled()]
    found = {"parts": len(parts)} | measured(joined, records, arguments.draws, arguments.methods)
    if arguments.nq:
        questions = {each.text: each for each in read_questions(Path(arguments.nq))}
        pool = list(labelled(joined, records, "meetings", {}))
        for seed in MIXED_SEEDS[: arguments.mixed_seeds]:
            case = RealCase(nq=arguments.nq, seed=seed, per_kind=1, tokens=1024, window=512, **same)
            pool += labelled(Tables(case), case.labelled(), "short answers", questions)
        found["mixed"] = mixed(pool, arguments.draws)
    return found


if __name__ == "__main__":
    raise SystemExit(main())
