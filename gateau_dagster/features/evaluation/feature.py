"""Declare what measures, compares and judges models, and check the section `evaluation`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.features.evaluation import ANSWERS, CHARACTERISTICS, JUDGMENTS, PAIRS
from gateau_dagster.features.evaluation.config import evaluation_of
from gateau_dagster.features.evaluation.declarations import (
    characteristics,
    contamination,
    evaluations,
    experiment_assets,
    pairwise_assets,
    sample_ratings,
    untouched_experiment,
    variant_assets,
)
from gateau_dagster.features.evaluation.method import SAMPLE_RATINGS
from gateau_dagster.features.evaluation.registry import (
    chosen_benchmarks,
    described_section,
    document_similarity,
    one_document,
    reserving,
    with_benchmarks,
)
from gateau_dagster.features.evaluation.server_client import server_key
from gateau_dagster.pipeline.asset import Asset
from gateau_dagster.pipeline.declared import pipeline_of
from gateau_dagster.pipeline.feature import Feature, ReservedDocuments


class Evaluation(Feature):
    """Benchmarks of trained models, their answers and judgments, and experiments with several models."""

    observed_sections: ClassVar = {
        "evaluation": ("models", "scoring", "training", "evaluation"),
        "experiment": ("models", "scoring", "short_chat", "training", "evaluation", "variants"),
    }

    def described_sections(self) -> Mapping[str, type[Section]]:
        """Return `evaluation` with the options of every benchmark."""
        return {"evaluation": described_section()}

    def check(self, config: Config) -> None:
        """Raise GateauError if a benchmark or an option does not exist, or if a benchmark that runs lacks something."""
        chosen_benchmarks(config)

    def completed(self, config: Config) -> Config:
        """Return the configuration with the names and options of the benchmarks."""
        return with_benchmarks(config)

    def answer_template(self, config: Config) -> str | None:
        """Return `evaluation.template`."""
        return evaluation_of(config).template

    def first_lines(self, config: Config, accepts: Callable[[str], bool]) -> Iterator[str]:
        """Yield the section with the benchmarks of the default that fit; some need longer prompts."""
        names = evaluation_of(with_benchmarks(config)).benchmarks or ()
        fitting = ", ".join(name for name in names if accepts(f"evaluation: {{benchmarks: [{name}]}}"))
        yield f"evaluation: {{benchmarks: [{fitting}]}}  # those of the default that fit these lengths"

    def named_files(self, config: Config) -> Iterator[tuple[str, str | Sequence[str]]]:
        """Yield the files of the benchmarks that run."""
        for benchmark in chosen_benchmarks(config).values():
            yield from ((each.place, each.path) for each in benchmark.files() if each.path)

    def model_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield, for each benchmark that runs, the check that it can measure the models."""
        yield from (benchmark.check_known_models for benchmark in chosen_benchmarks(config).values())

    def reserved_documents(self, config: Config) -> ReservedDocuments:
        """Return the documents that are reserved for the benchmarks that run."""
        options = reserving(config)
        return ReservedDocuments(
            share=None if options is None else options.share,
            similarity=document_similarity(config),
            one_document=partial(one_document, config),
        )

    def machine_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield the checks of the keys of the servers that a required asset asks."""
        families = {key.partition("/")[0] for key in pipeline_of(config).required}
        for place, server, asking in (
            ("evaluation.engine", evaluation_of(config).engine, {ANSWERS}),
            ("evaluation.judge", evaluation_of(config).judge, {JUDGMENTS, PAIRS, CHARACTERISTICS, SAMPLE_RATINGS}),
        ):
            if server is not None and families & asking:
                yield partial(server_key, place, server.key, server.base_url)

    def declare_first(self, config: Config) -> Iterator[Asset]:
        """Declare the overlaps of the data with the benchmarks' questions."""
        yield from contamination(config)

    def declare_scores(self, config: Config) -> Iterator[Asset]:
        """Declare the ratings of samples that the method `judge` reads."""
        yield from sample_ratings(config)

    def declare(self, config: Config) -> Iterator[Asset]:
        """Declare the benchmarks, the variants with their answers, judgments and scores, and what compares them."""
        yield from evaluations(config)
        yield from variant_assets(config)
        yield from experiment_assets(config)
        yield from untouched_experiment(config)
        yield from pairwise_assets(config)
        yield from characteristics(config)


FEATURE = Evaluation()
