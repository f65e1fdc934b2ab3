"""Declare what measures, compares and judges models, and check the section `evaluation`."""

from functools import partial

from gateau_dagster.config import Config
from gateau_dagster.evaluation.registry import document_similarity, one_document, reserving
from gateau_dagster.pipeline.feature import Feature, ReservedDocuments


class Evaluation(Feature):
    """Benchmarks of trained models, their answers and judgments, and experiments with several models."""

    def reserved_documents(self, config: Config) -> ReservedDocuments:
        """Return the documents that are reserved for the benchmarks that run."""
        options = reserving(config)
        return ReservedDocuments(
            share=None if options is None else options.share,
            similarity=document_similarity(config),
            one_document=partial(one_document, config),
        )


FEATURE = Evaluation()
