"""The samples that no selection takes, as an asset."""

from collections.abc import Iterator

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.evaluation.document_split import CODE_VERSION, SPLIT
from gateau_dagster.evaluation.registry import reserving
from gateau_dagster.pipeline.asset import FULL_COVERAGE, NOTHING_RESERVED, UNIQUE_IDS, Asset


def mix_checks(config: Config) -> tuple[str, ...]:
    """The check of a training mix, where samples are reserved at all."""
    return () if reserving(config) is None else (NOTHING_RESERVED,)


def document_split(config: Config) -> Iterator[Asset]:
    """Each sample's document, where a benchmark measures the checkpoint on documents that are new to it."""
    options = reserving(config)
    if options is None:
        return
    yield Asset(
        key=SPLIT,
        maker="document_split",
        group="data",
        kinds=("polars",),
        summary="each sample's document, and whether it is reserved for the held-out evaluation",
        description="Each sample's document (equal and nearly equal contexts are one), and whether the document is "
        "reserved for the held-out evaluation: no selection takes it, so that every selection is tested on the same "
        "samples, and none on a text that was trained on. Loads no model.",
        reads={"raw_long_sft": "fingerprint"},
        settings={"reserved share": options.share, "similarity of near-duplicates": options.similarity},
        code_version=CODE_VERSION,
        columns=tables.DOCUMENT_SPLIT,
        checks=(UNIQUE_IDS, FULL_COVERAGE),
        own_rejects=False,
    )
