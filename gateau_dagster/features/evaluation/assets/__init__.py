"""Make the assets of evaluation: the functions are in the modules beside. Check experiments and judgments."""

import dagster as dg

from gateau_dagster.assets.runs.checks import WholeCheck, check_result, require_made
from gateau_dagster.features.evaluation import GATE, READABLE_REPLIES
from gateau_dagster.features.evaluation.assets.benchmarks import benchmark_answers, benchmark_scores, evaluation
from gateau_dagster.features.evaluation.assets.experiment import (
    contamination,
    experiment,
    short_contamination,
    untouched_experiment,
)
from gateau_dagster.features.evaluation.assets.judge import JudgeResource
from gateau_dagster.features.evaluation.assets.judging import (
    benchmark_judgments,
    characteristics,
    pairwise,
    sample_ratings,
)
from gateau_dagster.features.evaluation.judged import NOTABLE_UNREADABLE, unreadable
from gateau_dagster.features.evaluation.statistics.experiment import configured_gate
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import percent

__all__ = [
    "CHECKS",
    "RESOURCES",
    "benchmark_answers",
    "benchmark_judgments",
    "benchmark_scores",
    "characteristics",
    "contamination",
    "evaluation",
    "experiment",
    "pairwise",
    "sample_ratings",
    "short_contamination",
    "untouched_experiment",
]

RESOURCES = {"judge": JudgeResource()}


def gate(state: State, asset: Asset) -> dg.AssetCheckResult:
    """Check the losses of models against the reference; the worst decides."""
    found = configured_gate(state.config, state.store.read(asset.key))
    assert found is not None, "only an experiment with a gate has this check"
    return check_result(
        GATE,
        found.verdict == "passed",
        error=found.verdict == "lost",
        summary=found.verdict,
        models=dg.MarkdownMetadataValue("\n".join(f"- {sentence}" for sentence in found.sentences)),
    )


def readable_replies(state: State, asset: Asset) -> dg.AssetCheckResult:
    """Check the replies of each variant; the worst decides, since the means of variants are compared."""
    found = {}
    for name in require_made(state, asset):
        table = state.store.read(asset.key, name, ["score"])
        found[name] = unreadable(table, state.store.read_rejected(asset.key, [name]))
    lost = {name: each for name, each in found.items() if each.notable}
    shown = ", ".join(f"{name} {percent(each.share)}" for name, each in lost.items())
    return check_result(
        READABLE_REPLIES,
        not lost,
        summary=f"more than {percent(NOTABLE_UNREADABLE)} without a score: {shown}" if lost else "few without a score",
        without_score=sum(each.without_score for each in found.values()),
        unanswered=sum(each.unanswered for each in found.values()),
        judgments=sum(each.judgments for each in found.values()),
    )


CHECKS = (
    WholeCheck(
        name=GATE,
        description="No model lost more than evaluation.gate.margin against the reference. The check fails if a loss "
        "is certain, and warns if it is possible.",
        evaluate=gate,
    ),
    WholeCheck(
        name=READABLE_REPLIES,
        description="At most a twentieth of each variant's judgments have no readable score.",
        evaluate=readable_replies,
    ),
)
