"""Declare the synthetic samples, and check the section `synthesis`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.data.sample import text_digest
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.server_client import server_key
from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, DOCUMENTS, PASSAGES_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.candidate_checks import as_samples
from gateau_dagster.features.synthesis.config import SECTION, UNVERIFIED, VERIFIED
from gateau_dagster.features.synthesis.declarations import DOCUMENT_FILES, document_keys, synthesis_assets
from gateau_dagster.features.synthesis.passages import document_files
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.pipeline.feature import Feature, GivenFiles, PartitionSet, VariantSamples

_TABLES = (QUESTIONS_TABLE, CONTEXTS_TABLE, CHECKS_TABLE)
_OBSERVED = ("models", "scoring", "synthesis", "evaluation")


def _verified(read: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    questions, contexts, checked = map(read, _TABLES)
    return as_samples(questions, contexts, checked.filter("accepted"))


def _unverified(read: Callable[[str], pl.DataFrame]) -> pl.DataFrame:
    # The ids are hashes, so the first ones are a random choice, and as many as are accepted make a fair comparison.
    questions, contexts, checked = map(read, _TABLES)
    accepted = as_samples(questions, contexts, checked.filter("accepted"))
    return as_samples(questions, contexts, questions.filter(fault="")).head(accepted.height)


class Synthesis(Feature):
    """Long samples that a generator writes about documents, and that are checked to need their context."""

    partition_sets = (
        PartitionSet(
            name=DOCUMENTS,
            keys=document_keys,
            job="synthesis",
            description="Writes and checks the synthetic samples about the chosen shards of documents.",
        ),
    )
    observed_sections: ClassVar = dict.fromkeys((PASSAGES_TABLE, CONTEXTS_TABLE, CHECKS_TABLE), _OBSERVED)
    variant_samples: ClassVar = {
        VERIFIED: VariantSamples(reads=_TABLES, make=_verified),
        UNVERIFIED: VariantSamples(reads=_TABLES, make=_unverified),
    }

    def machine_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield the checks of the keys of the judge and the generator that are asked."""
        if (options := SECTION.of(config)) is None:
            return
        if options.compares_by_judge and (judge := evaluation_of(config).judge) is not None:
            yield partial(server_key, judge.place, judge.key, judge.base_url)
        yield partial(server_key, options.generator.place, options.generator.key, options.generator.base_url)

    def inputs(self, config: Config) -> Iterator[GivenFiles]:
        """Yield the documents."""
        if (options := SECTION.of(config)) is not None:
            yield GivenFiles(
                key=DOCUMENT_FILES,
                place="synthesis.documents",
                paths=options.documents,
                summary="The documents of the synthetic samples",
                files=partial(document_files, options, config.folder),
                version=partial(_version, document_keys(config)),
            )

    def declare_first(self, config: Config) -> Iterator[Asset]:
        """Declare the tables by shard of documents, if the file has the section."""
        if (options := SECTION.of(config)) is not None:
            yield from synthesis_assets(config, options)


def _version(keys: list[str], observed: Observed) -> str:
    return text_digest([observed.partitions[key] for key in keys])


FEATURE = Synthesis()
