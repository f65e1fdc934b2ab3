"""Declare the documents of the samples: reserved ones, which no selection takes, and near-duplicates to be limited."""

from collections.abc import Iterator

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.evaluation.document_split import CODE_VERSION, SPLIT
from gateau_dagster.evaluation.registry import document_similarity, reserving
from gateau_dagster.pipeline.asset import FULL_COVERAGE, NOTHING_RESERVED, UNIQUE_IDS, Asset


def mix_checks(config: Config) -> tuple[str, ...]:
    """Return the check of a training mix if samples are reserved; else nothing."""
    return () if reserving(config) is None else (NOTHING_RESERVED,)


def document_split(config: Config) -> Iterator[Asset]:
    """Declare each sample's document, if documents are reserved for a benchmark or `selection.per_document` limits
    them. Both use the same table.
    """
    options = reserving(config)
    if options is None and config.selection.per_document is None:
        return
    share = {} if options is None else {"reserved share": options.share}
    yield Asset(
        key=SPLIT,
        maker="document_split",
        group="data",
        kinds=("polars",),
        summary="each sample's document, and whether it is reserved for the held-out evaluation",
        description="Each sample's document (equal and nearly equal contexts are one), and whether the document is "
        "reserved for the held-out evaluation: no selection takes it, so that every selection is tested on the same "
        "samples, and none on a text that was trained on. selection.per_document limits how many samples of a document "
        "are chosen. Loads no model.",
        reads={"raw_long_sft": "fingerprint"},
        settings={**share, "similarity of near-duplicates": document_similarity(config)},
        code_version=CODE_VERSION,
        columns=tables.DOCUMENT_SPLIT,
        checks=(UNIQUE_IDS, FULL_COVERAGE),
        own_rejects=False,
    )
