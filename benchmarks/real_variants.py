"""What would make `robust` better on real text: other scores from the same stored tables, kind by kind.

    .venv/bin/python benchmarks/real_variants.py --nq natural_questions.jsonl.gz --models MODEL --sizes 1024/512 \
        --seeds 0 1 2 --fold choose --out build/real_variants.json

Options, data and tables are those of real_selection.py: no model runs for what it has scored already. Of each response
token there is p_A and p_B (theta_A and theta_B given the prompt), N (the largest given a near segment or none) and F
(the largest given a far segment alone). k is the top tenth of the tokens, two at least. Choose on the half `choose` and
one model, report on the other half and other models.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from common_measure import machine, say, show, table, write_json
from common_ranking import Estimate, difference, estimates, tasks_of
from common_selection import Tables
from real_selection import ALL, LABELS, RealCase, cases_by_setting, options
from selection import evaluated

from gateau_dagster.scoring.segments import counted_tokens

REFERENCE = "robust"
Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """One sample. Each [|y|]; segment_gain: what each far segment adds over N, summed over tokens, [far segments]."""

    a: Vector
    b: Vector
    near: Vector
    far: Vector
    bare: Vector
    segment_gain: Vector

    @property
    def known(self) -> Vector:
        """What near text gives, by whichever way it was read: alone, or in theta_A's window."""
        return np.maximum(self.near, self.a)


def top(values: Vector) -> float:
    """Mean of the k largest, those below zero as zero."""
    k = int(counted_tokens(values.size, top=0.1))
    return float(np.maximum(np.sort(values)[::-1][:k], 0).mean())


def hmp(x: Tokens) -> float:
    """HMPp."""
    return float((x.b - x.a).mean())


def _both(gain: Callable[[Tokens], float]) -> Callable[[Tokens], float]:
    return lambda x: (hmp(x) + gain(x)) / 2


def _segment(x: Tokens) -> float:
    """The best far segment for all tokens together."""
    return float(x.segment_gain.max() / x.a.size) if x.segment_gain.size else 0.0


def _segment_less(x: Tokens) -> float:
    """The same, less what the median one gives."""
    return _segment(x) - float(np.median(x.segment_gain) / x.a.size) if x.segment_gain.size else 0.0


def _agreed(x: Tokens) -> Vector:
    """A token's gain as far as far text alone and theta_B agree on it."""
    return np.minimum(x.far, x.b) - x.known


def _joint(first: Vector, second: Vector) -> Vector:
    """A token's two gains as one: zero unless both are above zero."""
    return np.sqrt(np.maximum(first, 0) * np.maximum(second, 0))


def _mean(values: Vector) -> float:
    return float(values.mean())


VARIANTS: dict[str, tuple[str, Callable[[Tokens], float]]] = {
    "robust": ("HMPp and FG, as it is", _both(lambda x: top(x.far - x.near))),
    "hmp": ("HMPp alone", hmp),
    "fg": ("FG alone", lambda x: top(x.far - x.near)),
    "fg_known": ("FG, p_A counted as near", lambda x: top(x.far - x.known)),
    "robust_known": ("HMPp and FG, p_A counted as near", _both(lambda x: top(x.far - x.known))),
    "fg_agreed": ("min(F, p_B) - max(N, p_A), k largest", lambda x: top(_agreed(x))),
    "robust_agreed": ("HMPp and the k largest of min(F, p_B) - max(N, p_A)", _both(lambda x: top(_agreed(x)))),
    "mean_agreed": (
        "mean over tokens of max(0, min(F, p_B) - max(N, p_A))",
        lambda x: float(np.maximum(_agreed(x), 0).mean()),
    ),
    "signed": ("mean over tokens of F - max(N, p_A)", lambda x: float((x.far - x.known).mean())),
    "positive": (
        "mean over tokens of max(0, F - max(N, p_A))",
        lambda x: float(np.maximum(x.far - x.known, 0).mean()),
    ),
    "hmp_known": ("mean over tokens of p_B - max(N, p_A)", lambda x: float((x.b - x.known).mean())),
    "hmp_known_fg": (
        "mean of p_B - max(N, p_A), and FG with p_A near",
        lambda x: (float((x.b - x.known).mean()) + top(x.far - x.known)) / 2,
    ),
    "hmp_top": ("the k largest of p_B - p_A", lambda x: top(x.b - x.a)),
    "hmp_top_known": ("the k largest of p_B - max(N, p_A)", lambda x: top(x.b - x.known)),
    "hmp_top_fg": ("the k largest of p_B - p_A, and FG", lambda x: (top(x.b - x.a) + top(x.far - x.near)) / 2),
    "hmp_both": ("HMPp and the k largest of p_B - max(N, p_A)", _both(lambda x: top(x.b - x.known))),
    "positive_both": (
        "mean over tokens of max(0, p_B - p_A) and of max(0, F - N)",
        lambda x: float((np.maximum(x.b - x.a, 0) + np.maximum(x.far - x.near, 0)).mean()),
    ),
    "joint": ("mean of the root of (p_B - p_A)+ (F - N)+", lambda x: _mean(_joint(x.b - x.a, x.far - x.near))),
    "joint_known": (
        "mean of the root of (p_B - p_A)+ (F - max(N, p_A))+",
        lambda x: _mean(_joint(x.b - x.a, x.far - x.known)),
    ),
    "joint_both_known": (
        "mean of the root of (p_B - max(N, p_A))+ (F - max(N, p_A))+",
        lambda x: _mean(_joint(x.b - x.known, x.far - x.known)),
    ),
    "joint_top": (
        "the k largest of the root of (p_B - p_A)+ (F - N)+",
        lambda x: top(_joint(x.b - x.a, x.far - x.near)),
    ),
    "joint_least": (
        "mean of the lesser of (p_B - p_A)+ and (F - N)+",
        lambda x: float(np.maximum(np.minimum(x.b - x.a, x.far - x.near), 0).mean()),
    ),
    "hmp_joint": ("HMPp and joint", _both(lambda x: _mean(_joint(x.b - x.a, x.far - x.near)))),
    "fg_joint": (
        "FG and joint",
        lambda x: (top(x.far - x.near) + _mean(_joint(x.b - x.a, x.far - x.near))) / 2,
    ),
    "robust_joint": (
        "HMPp, FG and joint",
        lambda x: (hmp(x) + top(x.far - x.near) + _mean(_joint(x.b - x.a, x.far - x.near))) / 3,
    ),
    "segment": ("HMPp and one far segment for all tokens", _both(_segment)),
    "segment_median": (
        "HMPp and one far segment less the median one",
        _both(_segment_less),
    ),
    "segment_median_fg": (
        "HMPp, FG, and one far segment less the median one",
        lambda x: (hmp(x) + top(x.far - x.known) + _segment_less(x)) / 3,
    ),
    "information": (
        "mean of p_B log(p_B / p_A)",
        lambda x: float((x.b * np.log(np.maximum(x.b, 1e-30) / np.maximum(x.a, 1e-30))).mean()),
    ),
    "information_known": (
        "mean of p_B log(p_B / max(N, p_A))",
        lambda x: float((x.b * np.log(np.maximum(x.b, 1e-30) / np.maximum(x.known, 1e-30))).mean()),
    ),
    "long_ppl": ("mean of log(p_B / p_A)", lambda x: float((np.log(x.b + 1e-30) - np.log(x.a + 1e-30)).mean())),
}


def tokens_of(known: Tables) -> list[Tokens]:
    """One a record, in the records' order."""
    a, b, cam = (
        {row["sample_id"]: row for row in known[name].iter_rows(named=True)}
        for name in ("perplexity/short", "perplexity/long", "cam")
    )
    found = []
    for record in known.records:
        row = cam[record["id"]]
        gains = np.array(row["segment_gain"], dtype=np.float64)
        columns = (row["near_probability"], row["far_probability"], row["no_context_probability"])
        near, far, bare = (np.array(values, dtype=np.float64) for values in columns)
        short, long = (np.array(each[record["id"]]["token_probability"], dtype=np.float64) for each in (a, b))
        border = gains.size - row["near_segments"]
        found.append(Tokens(a=short, b=long, near=near, far=far, bare=bare, segment_gain=gains[:border]))
    return found


def variant_scores(cases: Sequence[RealCase]) -> tuple[list[list[str]], dict[str, list[Vector]]]:
    """Each data set's kinds, and the scores by variant."""
    sources, scores = [], {name: [] for name in VARIANTS}
    for case in cases:
        known = Tables(case)
        samples = tokens_of(known)
        sources.append([record["source"] for record in known.records])
        for name, (_, score) in VARIANTS.items():
            scores[name].append(np.array([score(each) for each in samples]))
    return sources, scores


def measured(cases: Sequence[RealCase], draws: int) -> dict[str, dict[str, dict[str, Estimate]]]:
    """By variant and task: AUROC, and the difference to the reference on the same resampled data."""
    sources, scores = variant_scores(cases)
    labels = {name: LABELS[name] for name in cases[0].kinds}
    found = evaluated(tasks_of(sources, labels, {ALL: list(labels)}, set(labels)), scores, draws)
    return {
        name: {
            task: {"auroc": estimates(figures)[0], "difference": difference(figures, found[REFERENCE][task])}
            for task, figures in by_task.items()
        }
        for name, by_task in found.items()
    }


def printed(setting: str, found: dict[str, dict[str, dict[str, Estimate]]], kinds: Sequence[str]) -> None:
    """Best first: all kinds with the difference, the lowest kind; then the kinds of all variants."""
    order = sorted(found, key=lambda name: -found[name][ALL]["auroc"].value)
    rows = []
    for name in order:
        lowest = min(kinds, key=lambda kind: found[name][kind]["auroc"].value)
        both = found[name][ALL]
        least = f"{lowest} {found[name][lowest]['auroc'].value:.3f}"
        rows.append([name, both["auroc"].show(), both["difference"].show(), least, VARIANTS[name][0]])
    show(f"\n{setting}\n" + table(["variant", "AUROC (95 %)", "less robust", "lowest kind", "what"], rows))
    rows = [[kind, *(f"{found[name][kind]['auroc'].value:.3f}" for name in order)] for kind in kinds]
    show("\n" + table(["kind", *order], rows))


def main(given: list[str] | None = None) -> int:
    """Parse, measure each setting, print, write."""
    arguments = options(__doc__).parse_args(given)
    started = time.perf_counter()
    found: dict[str, Any] = {}
    settings = cases_by_setting(arguments)
    if len(settings) > 1:  # where each has too few samples to tell variants apart
        settings["all of these"] = [case for cases in settings.values() for case in cases]
    for setting, cases in settings.items():
        say(f"{setting}: {len(cases)} data sets")
        found[setting] = measured(cases, arguments.draws)
        printed(setting, found[setting], arguments.kinds)
    write_json(arguments.out, {
        "machine": machine(),
        "seconds": time.perf_counter() - started,
        "variants": {name: what for name, (what, _) in VARIANTS.items()},
        "results": found,
    })  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
