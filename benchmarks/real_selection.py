"""Measure how well every method finds real samples that need far text: AUROC and precision by model and kind.

    .venv/bin/python benchmarks/real_selection.py --nq natural_questions.jsonl.gz --models MODEL [MODEL ...] \
        --sizes 1024/512 2048/1024 --fold report --out build/real_selection.json

The samples are those of real_text.py (its help says where --nq comes from); a size is a context's tokens and theta_A's
window. theta_B is the model itself, theta_A the same model whose prompt is cut to the window. A seed is a data set of
--per-kind samples of each kind. Tables are kept in --folder, so that a stopped run, or another seed, size or
method, computes only the missing tables. A kind's AUROC is of that kind against all kinds of the other label; intervals
(95 %) resample seeds and samples. `all models` is the mean over models, and `all models, all sizes` that over sizes,
too. Their samples of one seed ask the same questions, so that a seed is resampled with all of them.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from common import benchmark_parser, machine, say, settings_of, show, table, write_json
from common_ranking import SHARES, ByTask, Estimate, difference, estimates, evaluated, joined, named_estimates, tasks_of
from common_selection import REFERENCE, LabelledCase, Record, Tables, answers_known, scores_of
from real_text import make_samples
from real_text_kinds import KINDS
from real_text_passages import FOLDS, Fold, Room, read_questions

from gateau_dagster.config.models import Template
from gateau_dagster.config.selection import DEPENDENCIES
from gateau_dagster.explanation.evidence import EvidenceRows, evidence
from gateau_dagster.models.prompt import open_tokenizer, response_offsets
from gateau_dagster.selection.evidence import dependencies

METHODS = (
    *("gateau", "far_gain", "hmg", "cam", "information_gain", "key_tokens", "longattn"),
    *("perplexity", "ifd", "random", "length", "response_length"),
)
ALL = "all kinds"
KNOWN = 0.1  # least probability of an answer that theta_B can give, from anything it is shown
FRAME = 512  # tokens that instruction, response and the template's words may take beside the context
LABELS = {name: kind.needs_far for name, kind in KINDS.items()}


@dataclass(frozen=True, kw_only=True)
class RealCase(LabelledCase):
    """A real model, theta_A's window, and a data set of real text."""

    model: str
    nq: str
    tokens: int
    window: int
    seed: int
    per_kind: int = 2
    fold: Fold = "report"
    template: Template = "gateau"
    kinds: tuple[str, ...] = tuple(KINDS)
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """The name in progress messages."""
        return f"{self.setting}, seed {self.seed}"

    @property
    def setting(self) -> str:
        """Model, context, window and another template, which the figures of several seeds share."""
        form = "" if self.template == "gateau" else f", {self.template}"
        return f"{Path(self.model).name} {self.tokens}/{self.window}{form}"

    def records(self) -> list[Record]:
        """Return the data set as samples of the product."""
        texts = ("source", "context", "instruction", "response")
        return [{"id": each["sample_id"], **{name: each[name] for name in texts}} for each in self.labelled()]

    def labelled(self) -> list[dict[str, Any]]:
        """Return the data set with its labels."""
        return _labelled(self)

    def models(self) -> dict[str, Any]:
        """Return the model as theta_B, and as theta_A, which sees the window."""
        short = {"path": self.model, "context": "window", "window": self.window}
        return {"short": short, "long": {"path": self.model}}

    def scoring(self) -> dict[str, Any]:
        """Return the longest prompt and its template."""
        return {"max_length": self.tokens + FRAME, "template": self.template, "dtype": self.dtype}


@cache
def _labelled(case: RealCase) -> list[dict[str, Any]]:
    """Return the records of real_text.make_samples."""
    tokenizer = open_tokenizer(case.model)
    room = Room(tokenizer=tokenizer, tokens=case.tokens, window=case.window, template=case.template)
    more = {"per_kind": case.per_kind, "seed": case.seed, "kinds": case.kinds}
    return make_samples(read_questions(Path(case.nq)), room, fold=case.fold, **more)


@cache
def _tables(case: RealCase) -> Tables:
    return Tables(case)  # once for its setting, and once for those of all models and sizes


@cache
def answer_probabilities(case: RealCase) -> list[float]:
    """Return theta_B's mean probability of the answers' tokens in each response, in the order of the case's records.

    Each token counts by the context that makes it likeliest. Without a known answer all tokens count.
    """
    tokenizer, known = open_tokenizer(case.model), _tables(case)
    answer = {each.text: each.answer for each in read_questions(Path(case.nq))}
    columns = known["perplexity/long"].join(known["cam"], on="sample_id")
    columns = columns.select("sample_id", "token_probability", "near_probability", "far_probability")
    best = {name: np.max(lists, axis=0) for name, *lists in columns.iter_rows()}
    found = []
    for sample, record in zip(known.samples, _labelled(case), strict=True):
        answers = [answer[asked] for asked in record["questions"]]
        starts = [(text, place) for text in answers if (place := sample.response.find(text)) >= 0]
        spans = [(place, place + len(text)) for text, place in starts] or [(0, len(sample.response))]
        counts = [
            any(begin < stop and end > start for start, stop in spans)
            for begin, end in response_offsets(tokenizer, sample, case.template)
        ]
        found.append(float(best[sample.sample_id][counts].mean()))
    return found


@cache
def dependency_agreement(case: RealCase) -> dict[str, Any]:
    """Return how the columns of the product's table `evidence` agree with the places of the passages.

    counts: samples by the dependency of their passages (`_depends_on`), then by `dependency`. passages: the number with
    evidence on them, and of all. spans: the number of pieces of evidence on a passage, and of all.
    """
    tokenizer, tables = open_tokenizer(case.model), _tables(case)
    cam, long = (_by_id(tables[asset]) for asset in ("cam", "perplexity/long"))
    found = _by_id(dependencies(tables["cam"], tables["perplexity/long"]))
    counts = {wanted: dict.fromkeys(DEPENDENCIES, 0) for wanted in DEPENDENCIES}
    hit, on = list[bool](), list[bool]()
    for sample, record in zip(tables.samples, case.labelled(), strict=True):
        depends = found[sample.sample_id]
        counts[_depends_on(record)][depends["dependency"]] += 1
        rows = EvidenceRows(cam=cam[sample.sample_id], long=long[sample.sample_id], short=None)
        length, template = case.segment_length, case.template
        segments = evidence(sample, rows, tokenizer, segment_length=length, template=template).segments
        spans = [(segments[index].start, segments[index].end) for index in depends["segments"]]
        hit += [any(start < end and stop > begin for start, stop in spans) for begin, end in record["evidence"]]
        on += [any(start < end and stop > begin for begin, end in record["evidence"]) for start, stop in spans]
    return {"counts": counts, "passages": [sum(hit), len(hit)], "spans": [sum(on), len(on)]}


def _depends_on(record: Mapping[str, Any]) -> str:
    """Return the dependency of a sample by the places of its passages; without passages, by its kind."""
    if far := record["places"].count("far"):
        return "one_far" if far == 1 else "several_far"
    return "near" if record["places"] else "unpredictable" if record["source"] == "noise" else "closed_book"


def _by_id(table: pl.DataFrame) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in table.iter_rows(named=True)}


def _together(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of `dependency_agreement` over data sets."""
    counts = {
        wanted: {name: sum(each["counts"][wanted][name] for each in found) for name in DEPENDENCIES}
        for wanted in DEPENDENCIES
    }
    sums = {name: [sum(each[name][place] for each in found) for place in (0, 1)] for name in ("passages", "spans")}
    return {"counts": counts, **sums}


def measured(cases: Sequence[RealCase], methods: Sequence[str], draws: int, reference: str) -> dict[str, Any]:
    """Return `figures` by method and task, of cases that differ in seed or model, and what was not run or scored.

    `difference`: of each method's AUROC over all kinds to that of the reference.
    `answerable`: the same without the far samples whose answer has a probability below KNOWN in every context.
    `dependency`: dependency_agreement of all samples.
    """
    found = [_measured_alone(case, tuple(methods), draws) for case in cases]
    known, seeds = [_tables(case) for case in cases], [case.seed for case in cases]
    figures, of_answerable = (joined([each[of] for each in found], seeds) for of in ("figures", "answerable"))
    answers = [answers_known(each) for each in known]
    return {
        "figures": figures,
        "difference": _differences(figures, reference),
        "answerable": {
            "samples": sum(each["answerable_samples"] for each in found),
            "figures": of_answerable,
            "difference": _differences(of_answerable, reference),
        },
        "samples": sum(len(each.records) for each in known),
        "probability_of_response": {
            name: sum(each[name] for each in answers) / len(answers) for name in cases[0].kinds
        },
        "unscored": {label: sum(each["unscored"][label] for each in found) for label in found[0]["unscored"]},
        "not_run": found[0]["not_run"],
        "dependency": _together([dependency_agreement(case) for case in cases]),
    }


@cache
def _measured_alone(case: RealCase, methods: Sequence[str], draws: int) -> dict[str, Any]:
    """Return the figures of one data set, over all its samples and over those that theta_B can answer."""
    known, labels = _tables(case), {name: LABELS[name] for name in case.kinds}
    scores, missing = scores_of([known], methods)
    sources = [record["source"] for record in known.records]
    pairs = zip(sources, answer_probabilities(case), strict=True)
    answerable = [source if not labels[source] or p >= KNOWN else "" for source, p in pairs]
    figures, of_answerable = (
        evaluated(tasks_of([of], labels, {ALL: list(labels)}, set(labels)), scores, draws, [case.seed])
        for of in (sources, answerable)
    )
    return {
        "figures": figures,
        "answerable": of_answerable,
        "answerable_samples": sum(source != "" for source in answerable),
        "unscored": {label: int((each == -float("inf")).sum()) for label, (each,) in scores.items()},
        "not_run": missing,
    }


def _differences(figures: Mapping[str, ByTask], reference: str) -> dict[str, Estimate]:
    known = {label: by_task[ALL] for label, by_task in figures.items() if ALL in by_task}
    return {label: difference(each, known[reference]) for label, each in known.items()} if reference in known else {}


def printed(found: Mapping[str, dict[str, Any]], kinds: Sequence[str], reference: str) -> None:
    """Print methods by setting, AUROC and precision; then kinds by setting for the reference."""
    settings = list(found)
    first: dict[str, ByTask] = found[settings[0]]["figures"]
    order = sorted(first, key=lambda label: -estimates(first[label][ALL])[0].value)
    for number, name in enumerate(["AUROC", *(f"Precision in the best {share:.0%}" for share in SHARES)]):
        rows = [[label, *(_shown(found[each], label, ALL, number) for each in settings)] for label in order]
        show(f"\n{name} (95 %)\n" + table(["method", *settings], rows))
    rows = [[label, *(_difference(found[each], label) for each in settings)] for label in order]
    show(f"\nAUROC minus that of {reference} (95 %)\n" + table(["method", *settings], rows))
    some = {each: found[each]["answerable"] for each in settings}
    rows = [[label, *(_shown(some[each], label, ALL, 0) for each in settings)] for label in order]
    show(f"\nAUROC without far samples whose answer has a probability below {KNOWN} in every context (95 %)\n")
    show(table(["method", *(f"{each}: {some[each]['samples']} samples" for each in settings)], rows))
    shown = reference if reference in first else order[0]
    for of, what in ((found, "all samples"), (some, "samples that theta_B can answer")):
        rows = [
            [kind, "far" if LABELS[kind] else "-", *(_shown(of[each], shown, kind, 0) for each in settings)]
            for kind in kinds
        ]
        show(f"\nAUROC of {shown} by kind, against the kinds of the other label, {what} (95 %)\n")
        show(table(["kind", "needs", *settings], rows))
    rows = [[kind, *(f"{found[each]['probability_of_response'][kind]:.2f}" for each in settings)] for kind in kinds]
    show("\ntheta_B's probability of a response token, given everything\n" + table(["kind", *settings], rows))


def _shown(found: Mapping[str, Any], label: str, task: str, number: int) -> str:
    by_task = found["figures"].get(label)
    return "" if by_task is None or task not in by_task else estimates(by_task[task])[number].show()


def _difference(found: Mapping[str, Any], label: str) -> str:
    return found["difference"][label].show() if label in found["difference"] else ""


def size(text: str) -> tuple[int, int]:
    """Parse `TOKENS/WINDOW`."""
    tokens, _, window = text.partition("/")
    return int(tokens), int(window)


def parse(given: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--nq", required=True, help="questions with passages: see the help of real_text.py")
    add("--models", nargs="+", required=True, help="folders or hub names")
    add("--sizes", nargs="+", type=size, default=[(2048, 1024)], metavar="TOKENS/WINDOW")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2, 3], help="data sets; together 20 samples of each kind")
    add("--per-kind", type=int, default=5, help="samples of each kind in a seed's data")
    add("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    add("--fold", choices=FOLDS, default="report", help="half of the questions")
    add("--template", nargs="+", choices=["gateau", "chat"], default=["gateau"], help="as scoring.template")
    add("--segment-length", type=int, default=128)
    capable = torch.cpu.get_capabilities()
    fast = "bfloat16" if capable.get("avx512_bf16") or capable.get("amx_bf16") else "float32"
    add("--dtype", choices=["float32", "bfloat16"], default=fast, help="default: bfloat16 where the processor has it")
    add("--device", default="cpu", help="as scoring.device")
    add("--draws", type=int, default=400, help="of the bootstrap")
    add("--folder", type=Path, default=Path("build/benchmarks/real_selection"), help="for the tables")
    add("--methods", nargs="+", default=list(METHODS), help="names, or labels as gateau[paper]")
    add("--reference", default=REFERENCE, help="whose figures are shown by kind")
    return parser.parse_args(given)


def cases_by_setting(arguments: argparse.Namespace) -> dict[str, list[RealCase]]:
    """Return the cases of each setting, one per seed; then those of all models, and of all models and sizes."""
    same = {name: getattr(arguments, name) for name in ("folder", "nq", "per_kind", "fold")}
    same |= {"dtype": arguments.dtype, "device": arguments.device}
    same |= {"segment_length": arguments.segment_length, "kinds": tuple(arguments.kinds)}
    found: dict[str, list[RealCase]] = {}
    together: dict[str, list[RealCase]] = {}
    for template, model, (tokens, window) in product(arguments.template, arguments.models, arguments.sizes):
        same |= {"template": template, "model": model, "tokens": tokens, "window": window}
        cases = [RealCase(seed=seed, **same) for seed in arguments.seeds]
        found[cases[0].setting] = cases
        together.setdefault(cases[0].setting.replace(Path(model).name, "all models", 1), []).extend(cases)
    if len(arguments.sizes) > 1:
        together["all models, all sizes"] = [case for cases in together.values() for case in cases]
    return found | (together if len(arguments.models) > 1 else {})


def _between_templates(found: Mapping[str, Any], reference: str) -> dict[str, Estimate]:
    """Return the difference of the reference's AUROC by setting with another template; the draws are the same."""
    of_setting = {name: each["figures"][reference][ALL] for name, each in found.items() if reference in each["figures"]}
    others = {setting: setting.partition(", ")[0] for setting in of_setting if ", " in setting}
    return {name: difference(of_setting[name], of_setting[base]) for name, base in others.items() if base in of_setting}


def _written(found: Mapping[str, Any]) -> dict[str, Any]:
    some = found["answerable"]
    whole = {"figures": named_estimates(found["figures"])}
    return {**found, **whole, "answerable": {**some, "figures": named_estimates(some["figures"])}}


def main(given: list[str] | None = None) -> int:
    """Parse, measure each setting, print, write."""
    arguments = parse(given)
    started = time.perf_counter()
    found: dict[str, dict[str, Any]] = {}
    for setting, cases in cases_by_setting(arguments).items():
        say(f"{setting}: {len(cases)} data sets")
        found[setting] = measured(cases, arguments.methods, arguments.draws, arguments.reference)
    printed(found, arguments.kinds, arguments.reference)
    forms = _between_templates(found, arguments.reference)
    for setting, estimate in forms.items():
        show(f"\nAUROC of {arguments.reference}, {setting} minus the same with template gateau: {estimate.show()}")
    settings = settings_of(arguments, "nq") | {"models": [Path(model).name for model in arguments.models]}
    write_json(arguments.out, {
        "settings": settings,
        "machine": machine(),
        "seconds": time.perf_counter() - started,
        "kinds": {name: {"needs_far": KINDS[name].needs_far, "why": KINDS[name].why} for name in arguments.kinds},
        "results": {name: _written(each) for name, each in found.items()},
        "between_templates": forms,
    })  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
