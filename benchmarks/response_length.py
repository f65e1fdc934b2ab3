"""Measure what scores make of a response's length: AUROC within lengths and across, and what a budget chooses.

    .venv/bin/python benchmarks/response_length.py --nq natural_questions.jsonl.gz --model MODEL --fold report \
        --out build/response_length_report.json

The samples are those of real_text.py: LENGTH_KINDS, with one to eight answers, and the kinds of the benchmark on real
text, in contexts of one size. docs/evidence/length.md says what is measured, and the rule that the figures decide. The
candidates are functions of a response's tokens under theta_A, theta_B, near and far text. No candidate runs a model:
all of them read tables that are kept in --folder, so that a run that was stopped resumes. Intervals (95 %) resample
the pages that the samples' first questions are about.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import benchmark_parser, machine, say, settings_of, show, table, write_json
from common_ranking import BOUNDS, Estimate, Vector
from common_selection import Tables
from real_selection import RealCase
from real_text_kinds import KINDS, LENGTH_KINDS
from real_text_passages import FOLDS, Question, read_questions

from gateau_dagster.methods.token_contrast import LEAST_PROBABILITY, token_pairs
from gateau_dagster.models.prompt import open_tokenizer, response_offsets, token_offsets
from gateau_dagster.scoring.segments import cut_segments, far_gain
from gateau_dagster.selection.statistics import spearman

STRATA = (16, 48, 96)
"""The most response tokens of each stratum but the last."""
STRATUM_NAMES = ("up to 16", "17 to 48", "49 to 96", "over 96")
OF_LENGTHS, OF_TODAY = "30 kinds", "today's kinds"
BUDGET = 0.2  # of the tokens of the 30 kinds
RECALL = (1, 3, 5)  # segments
REFERENCE = "robust"
# One sample of each kind per seed: seeds of LENGTH_KINDS, then of KINDS.
SEEDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "choose": ((999,), (100,)),
    "report": ((200,), (200,)),
}
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ResponseTokens:
    """Probabilities of a response's tokens, float64 [tokens] each, and the tokens of the context.

    short, long: p_A and p_B, of theta_A within its window and of theta_B given everything.
    near, far: N and F, given the best near text or none, and given the best far segment.
    """

    short: Vector
    long: Vector
    near: Vector
    far: Vector
    context: int

    @property
    def count(self) -> int:
        """Return m, the number of response tokens."""
        return self.long.size


Candidate = Callable[[ResponseTokens], float]


def robust(of: ResponseTokens) -> float:
    """Return the score of preset `robust` for a context of two segments or more."""
    gain = far_gain(of.near, of.far, segments=2)
    assert gain is not None
    return 0.5 * float((of.long - of.short).mean()) + 0.5 * gain


def all_tokens(of: ResponseTokens) -> float:
    """Return half the mean of (p_B - p_A)+ and (F - N)+."""
    return float((np.maximum(of.long - of.short, 0) + np.maximum(of.far - of.near, 0)).mean() / 2)


def information(of: ResponseTokens) -> float:
    """Return half the mean of p_B log(p_B / p_A) and M log(M / N), where M is the larger of F and N."""
    return float(sum(gains.mean() for gains in _information_gains(of)) / 2)


def _clear(of: ResponseTokens, least: float) -> float:
    """Return half the mean of the same gains, of which those below `least` nats count as none."""
    return float(sum(np.where(gains >= least, gains, 0).mean() for gains in _information_gains(of)) / 2)


def _information_gains(of: ResponseTokens) -> tuple[Vector, Vector]:
    short, long, near, far = (np.maximum(each, LEAST_PROBABILITY) for each in (of.short, of.long, of.near, of.far))
    best = np.maximum(near, far)
    return long * np.log(long / short), best * np.log(best / near)


def _times(of: ResponseTokens, mean: Candidate, factor: Callable[[ResponseTokens], float]) -> float:
    return mean(of) * factor(of)


FACTORS: dict[str, Callable[[ResponseTokens], float]] = {
    "": lambda _: 1.0,
    "_sum": lambda of: of.count,
    "_cost": lambda of: of.count / (of.count + of.context),
    "_saturating_16": lambda of: of.count / (of.count + 16),
    "_saturating_64": lambda of: of.count / (of.count + 64),
    "_sqrt": lambda of: of.count**0.5,
}
"""The factor of a mean over tokens in each form."""
MEANS: dict[str, Candidate] = {
    "all_tokens": all_tokens,
    "information": information,
    "clear_0.3": partial(_clear, least=0.3),
    "clear_0.5": partial(_clear, least=0.5),
}
CANDIDATES: dict[str, Candidate] = {
    REFERENCE: robust,
    "robust_sqrt": partial(_times, mean=robust, factor=FACTORS["_sqrt"]),
    **{
        f"{name}{form}": partial(_times, mean=mean, factor=factor)
        for name, mean in MEANS.items()
        for form, factor in FACTORS.items()
    },
}


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A sample whose evidence is known. page: samples of one page are resampled together.

    far_tokens: the response tokens that depend on far text. marked: the segments with evidence.
    gains: what each segment adds, `segment_gain` of the table `cam`.
    """

    group: str
    page: str
    needs_far: bool
    far_tokens: int
    tokens: ResponseTokens
    marked: frozenset[int]
    gains: tuple[float, ...]


def labelled(
    tables: Tables, records: Sequence[Mapping[str, Any]], group: str, questions: Mapping[str, Question]
) -> Iterator[Labelled]:
    """Yield the samples that all three tables hold.

    Args:
        records: with needs_far, evidence, places and, where the far answers are known, questions; in the order of
            `tables.samples`.
        questions: by their text.
    """
    config, tokenizer = tables.case.config(), open_tokenizer(tables.case.config().models["long"].path)
    near_and_far = tables["cam"].select("sample_id", "near_probability", "far_probability", "segment_gain")
    joined = token_pairs(tables["perplexity/short"], tables["perplexity/long"]).join(near_and_far, on="sample_id")
    rows = {row["sample_id"]: row for row in joined.iter_rows(named=True)}
    for sample, record in zip(tables.samples, records, strict=True):
        if sample.sample_id not in rows:
            continue
        row, offsets = rows[sample.sample_id], token_offsets(tokenizer, sample.context)
        asked = [questions[text] for text in record.get("questions", ())]
        spans = far_answers(record, sample.context, sample.response, asked)
        of_response = response_offsets(tokenizer, sample, config.scoring.template)
        probabilities = (row[name] for name in ("short", "long", "near_probability", "far_probability"))
        short, long, near, far = (np.array(each, dtype=np.float64) for each in probabilities)
        yield Labelled(
            group=group,
            page=record["page"] if asked else record.get("meeting", sample.sample_id),
            needs_far=record["needs_far"],
            far_tokens=sum(any(a < end and b > begin for a, b in spans) for begin, end in of_response),
            tokens=ResponseTokens(short=short, long=long, near=near, far=far, context=len(offsets)),
            marked=marked_segments(offsets, record["evidence"], config.scoring.segment_length),
            gains=tuple(-np.inf if gain is None else gain for gain in row["segment_gain"]),
        )


def far_answers(
    record: Mapping[str, Any], context: str, response: str, asked: Sequence[Question]
) -> list[tuple[int, int]]:
    """Return the character ranges of a response that depend on far text: all of it if no question is known."""
    if not record["needs_far"]:
        return []
    if not asked:
        return [(0, len(response))]
    places = zip(record["evidence"], record["places"], strict=True)
    far = [context[begin:end] for (begin, end), place in places if place == "far"]
    found, start = list[tuple[int, int]](), 0
    for question in asked:
        begin = response.index(question.answer, start)
        start = begin + len(question.answer)
        if any(question.answer in text for text in far):
            found.append((begin, start))
    return found


def marked_segments(
    offsets: Sequence[tuple[int, int]], evidence: Sequence[Sequence[int]], length: int
) -> frozenset[int]:
    """Return the segments, from 0, that hold a character of the evidence. offsets: of the context's tokens."""
    spans = [(offsets[first][0], offsets[stop - 1][1]) for first, stop in cut_segments(len(offsets), length)]
    return frozenset(
        place for place, (a, b) in enumerate(spans) if any(a < end and b > begin for begin, end in evidence)
    )


def segment_figures(gains: Sequence[float], marked: frozenset[int]) -> dict[str, float]:
    """Return how well the segments' gains find those with evidence, of one sample that has both kinds of segments.

    first_k: 1 if one of the k segments that gain most is marked. recall_k: the share of the marked ones among them.
    auroc: of marked against other segments.
    """
    order = sorted(range(len(gains)), key=lambda place: -gains[place])
    found: dict[str, float] = {}
    for count in RECALL:
        among = len(marked.intersection(order[:count]))
        found |= {f"first_{count}": float(among > 0), f"recall_{count}": among / len(marked)}
    positive = np.array([place in marked for place in range(len(gains))])
    return found | {"auroc": float(pair_auroc(np.array(gains), positive, None, np.ones((1, len(gains))))[0])}


def pair_auroc(scores: Vector, positive: Bools, pairs: Bools | None, weights: Vector | Counts) -> Vector:
    """Return the share of pairs, one positive and one other sample, that the scores rank rightly; float64 [draws].

    Equal scores count half. Without a pair it is NaN.

    Args:
        scores: [n].
        positive: [n].
        pairs: [positives, others], those that count; None: all.
        weights: [draws, n], how often each sample counts.
    """
    first, second = scores[positive][:, None], scores[~positive][None]
    wins = (first > second) + (first == second) / 2
    counted = np.ones_like(wins) if pairs is None else pairs.astype(np.float64)
    each, other = weights[:, positive], weights[:, ~positive]
    total = ((each @ counted) * other).sum(axis=1)
    right = ((each @ (wins * counted)) * other).sum(axis=1)
    return np.divide(right, total, out=np.full(total.shape, np.nan), where=total > 0)


def choice(order: Counts, tokens: Counts, budget: float) -> Counts:
    """Return the first samples of `order` that have at most `budget` tokens together, as rule `token_budget` does."""
    return order[np.cumsum(tokens[order]) <= budget]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Labelled samples with the scores of every candidate, and weights of the bootstrap: [1 + draws, n], first ones."""

    samples: Sequence[Labelled]
    draws: int
    scores: Mapping[str, Vector] = field(init=False)
    weights: Counts = field(init=False)

    def __post_init__(self) -> None:
        scores = {name: np.array([score(each.tokens) for each in self.samples]) for name, score in CANDIDATES.items()}
        object.__setattr__(self, "scores", scores)
        pages = {page: number for number, page in enumerate(dict.fromkeys(each.page for each in self.samples))}
        of_page = np.array([pages[each.page] for each in self.samples])
        drawn = np.random.default_rng(0).multinomial(len(pages), np.full(len(pages), 1 / len(pages)), size=self.draws)
        object.__setattr__(self, "weights", np.vstack([np.ones(len(self.samples), int), drawn[:, of_page]]))

    def figures(self, name: str) -> dict[str, Vector]:
        """Return the figures of a candidate: of all samples, then of each draw, [1 + draws] each."""
        scores, far = self.scores[name], np.array([each.needs_far for each in self.samples])
        of_auroc = {
            task: pair_auroc(scores, far, pairs, self.weights) for task, pairs in self.tasks(far).items() if pairs.any()
        }
        return of_auroc | self._of_choice(scores, far)

    def tasks(self, far: Bools) -> dict[str, Bools]:
        """Return the pairs of each AUROC by its name, [far, others]."""
        stratum = np.array([np.searchsorted(STRATA, each.tokens.count) for each in self.samples])
        group = np.array([each.group for each in self.samples])
        first, second = stratum[far][:, None], stratum[~far][None]
        found = {"all": np.ones((first.size, second.size), dtype=bool)}
        for name in dict.fromkeys(group.tolist()):
            found[name] = (group[far][:, None] == name) & (group[~far][None] == name)
        found |= {"within": first == second, "across": first != second}
        found |= {"far shorter": first < second, "far longer": first > second}
        return found | {label: (first == number) & (second == number) for number, label in enumerate(STRATUM_NAMES)}

    def _of_choice(self, scores: Vector, far: Bools) -> dict[str, Vector]:
        """Return Spearman of score and length among far samples, and what a budget chooses of the first group."""
        members = np.flatnonzero([each.group == self.samples[0].group for each in self.samples])
        lengths = np.array([each.tokens.count for each in self.samples])
        tokens = lengths + np.array([each.tokens.context for each in self.samples])
        of_far = np.array([each.far_tokens for each in self.samples])
        found: dict[str, list[float]] = {"spearman": [], "far tokens": [], "far samples": [], "length": []}
        ranked = members[np.argsort(-scores[members], kind="stable")]
        for weights in self.weights:
            order = np.repeat(ranked, weights[ranked])
            chosen = choice(order, tokens, BUDGET * float(tokens[order].sum()))
            far_ones = order[far[order]]
            rho = spearman(scores[far_ones], lengths[far_ones].astype(np.float64))
            found["spearman"].append(np.nan if rho is None else rho)
            found["far tokens"].append(float(of_far[chosen].sum() / of_far[order].sum()))
            found["far samples"].append(float(far[chosen].mean()))
            found["length"].append(float(np.median(lengths[chosen]) / np.median(lengths[far_ones])))
        return {name: np.array(values) for name, values in found.items()}


def estimate(values: Vector) -> Estimate:
    """Return the first value with the interval of the others. A draw without one, such as one without far samples, is
    left out.
    """
    low, high = np.percentile(drawn, BOUNDS) if (drawn := values[1:][np.isfinite(values[1:])]).size else values[[0, 0]]
    return Estimate(value=float(values[0]), low=float(low), high=float(high))


def measured(pool: Pool) -> dict[str, Any]:
    """Return the figures of every candidate, their differences to REFERENCE, and how segments find the evidence."""
    found = {name: pool.figures(name) for name in CANDIDATES}
    both = [each for each in pool.samples if 0 < len(each.marked) < len(each.gains)]
    by_place = {
        "far": [segment_figures(each.gains, each.marked) for each in both if each.needs_far],
        "near": [segment_figures(each.gains, each.marked) for each in both if not each.needs_far],
    }
    return {
        "samples": len(pool.samples),
        "far": sum(each.needs_far for each in pool.samples),
        "figures": {name: {of: estimate(values) for of, values in each.items()} for name, each in found.items()},
        "difference": {
            name: {of: estimate(values - found[REFERENCE][of]) for of, values in each.items()}
            for name, each in found.items()
        },
        "evidence": {
            place: {"samples": len(each)} | {of: float(np.mean([one[of] for one in each])) for of in each[0]}
            for place, each in by_place.items()
            if each
        },
    }


def printed(found: Mapping[str, Any]) -> None:
    """Print every figure of every candidate, and the differences of AUROC."""
    for of, what in (("figures", "Figures"), ("difference", f"Minus those of {REFERENCE}")):
        names = list(found[of][REFERENCE])
        rows = [[name, *(each[figure].show() for figure in names)] for name, each in found[of].items()]
        show(f"\n{what} (95 %)\n" + table(["candidate", *names], rows))
    for place, figures in found["evidence"].items():
        show(f"\nEvidence, {place}: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))


def main(given: list[str] | None = None) -> int:
    """Parse, measure, print, write."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--nq", required=True, help="questions with passages: see the help of real_text.py")
    add("--model", required=True, help="folder or hub name")
    add("--tokens", type=int, default=1024, help="of a context")
    add("--window", type=int, default=512, help="of theta_A, in tokens of the prompt")
    add("--fold", choices=FOLDS, default="report", help="half of the questions")
    add("--length-seeds", nargs="+", type=int, help="data sets of one sample of each of the 30 kinds")
    add("--today-seeds", nargs="*", type=int, help="data sets of one sample of each of today's kinds")
    add("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    add("--device", default="cpu", help="as scoring.device")
    add("--draws", type=int, default=1000, help="of the bootstrap")
    add("--folder", type=Path, default=Path("build/benchmarks/response_length"), help="for the tables")
    arguments = parser.parse_args(given)
    lengths, today = SEEDS[arguments.fold]
    arguments.length_seeds = arguments.length_seeds or list(lengths)
    arguments.today_seeds = list(today) if arguments.today_seeds is None else arguments.today_seeds
    started, questions = time.perf_counter(), {each.text: each for each in read_questions(Path(arguments.nq))}
    samples = list[Labelled]()
    for group, case in _cases(arguments):
        say(f"{case.name}: {group}")
        samples += labelled(Tables(case), case.labelled(), group, questions)
    found = measured(Pool(samples=samples, draws=arguments.draws))
    printed(found)
    settings = settings_of(arguments, "nq", "model") | {"model": Path(arguments.model).name}
    about = {"settings": settings, "machine": machine(), "seconds": time.perf_counter() - started}
    write_json(arguments.out, about | found)
    return 0


def _cases(arguments: argparse.Namespace) -> Iterator[tuple[str, RealCase]]:
    same = {name: getattr(arguments, name) for name in ("folder", "nq", "model", "tokens", "window", "fold", "dtype")}
    same |= {"device": arguments.device, "per_kind": 1}
    for group, seeds, kinds in (
        (OF_LENGTHS, arguments.length_seeds, LENGTH_KINDS),
        (OF_TODAY, arguments.today_seeds, KINDS),
    ):
        for seed in seeds:
            yield group, RealCase(seed=seed, kinds=tuple(kinds), **same)


if __name__ == "__main__":
    raise SystemExit(main())
