"""Tell tests of the whole product what benchmarks, answers, judgments and experiments add."""

NAME = "evaluation"
# Where a benchmark asks questions, or a judge is there, more is made again: see test_declarations.
CODE_VERSIONS: dict[str, set[str]] = {
    "features.evaluation.contamination.CODE_VERSION": set(),
    "features.evaluation.contamination.TOUCHED_CODE_VERSION": set(),
    "features.evaluation.judging.characteristics.CODE_VERSION": {"sample_ratings"},
    "features.evaluation.declarations.PAIRS_CODE_VERSION": set(),
    "features.evaluation.grading.CODE_VERSION": set(),
    "features.evaluation.judged.CODE_VERSION": set(),
    "features.evaluation.statistics.experiment.CODE_VERSION": {"experiment"},
}
