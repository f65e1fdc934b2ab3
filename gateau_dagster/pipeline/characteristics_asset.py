"""What a judge says of the best and the worst training samples, as an asset."""

from collections.abc import Iterator

from gateau_dagster.config import Config
from gateau_dagster.evaluation.judging.characteristics import CHARACTERISTICS as COLUMNS
from gateau_dagster.evaluation.judging.characteristics import CODE_VERSION
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.selection_reads import ranking_asset

CHARACTERISTICS = "characteristics"


def characteristics(config: Config) -> Iterator[Asset]:
    """Where `evaluation.judge.characteristics` asks for it; it needs no training."""
    judge = config.evaluation.judge
    if judge is None or judge.characteristics is None or not config.evaluation.enabled:
        return
    yield Asset(
        key=CHARACTERISTICS,
        maker="characteristics",
        group="selection",
        kinds=("openai",),
        summary="five characteristics of the best and worst samples, rated by a judge",
        description="Coherence, necessity, faithfulness, helpfulness and complexity of the samples with the highest "
        "and the lowest scores, rated from 1 to 5 by a judge (the paper's figure 2).",
        reads=dict.fromkeys(("raw_long_sft", ranking_asset(config)), "fingerprint"),
        settings={
            "evaluation.judge.model": judge.model,
            "evaluation.judge.repeats": judge.repeats,
            "evaluation.judge.characteristics": judge.characteristics,
        },
        code_version=CODE_VERSION,
        columns=COLUMNS,
        goal=True,
    )
