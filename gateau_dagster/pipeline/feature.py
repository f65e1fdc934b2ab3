"""Define what a feature adds to the pipeline, and find the features."""

# Why features are found and not imported: what only some users need should cost the others nothing to read. The kernel
# names no feature, so one is added or taken out as a folder, unless another feature is built on it.
#
# The price: nobody sees from a hook who implements it. So the docstring of `Feature` lists all hooks, and a method that
# a feature lacks does nothing.

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Literal, TypeAlias

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import DEMO, GateauError
from gateau_dagster.pipeline.asset import Asset, Observed
from gateau_dagster.progress import Progress, silent
from gateau_dagster.registry import feature_parts

Planted: TypeAlias = Callable[[str, str], list[int]]
"""Returns where in a context, by characters, the facts begin that an instruction asks for."""
Inputs: TypeAlias = Literal["data", "tokenizers", "models"]


@dataclass(frozen=True, kw_only=True)
class PartitionSet:
    """A partition set of a feature, whose assets are made before all others of a plan, and by a separate job.

    name: as assets name it. keys: returns its partitions, which no other set has; none without the feature's section.
    job: the name of the job in Dagster, and its description.
    """

    name: str
    keys: Callable[[Config], list[str]]
    job: str
    description: str


@dataclass(frozen=True, kw_only=True)
class GivenFiles:
    """Files that a feature reads, as the lineage shows them.

    key: as of an asset. place: the key of the configuration that names the `paths`. files: looks for them. version:
    returns what changes with their content.
    """

    key: str
    place: str
    paths: str | Sequence[str]
    summary: str
    files: Callable[[], list[SourceFile]]
    version: Callable[[Observed], str]


@dataclass(frozen=True, kw_only=True)
class VariantSamples:
    """The samples of a variant that a feature makes: the assets that they are taken from.

    make: returns the columns of raw_long_sft, given a function that reads such an asset.
    """

    reads: Sequence[str]
    make: Callable[[Callable[[str], pl.DataFrame]], pl.DataFrame]


@dataclass(frozen=True, kw_only=True)
class ReservedDocuments:
    """The documents that no selection takes, since a feature tests models on them.

    share: of the documents; None if none is reserved. similarity: of two contexts that count as one document, at least;
        `selection.per_document` counts by it, too.
    one_document: returns the error for this number of samples if all are from one document.
    """

    share: float | None
    similarity: float
    one_document: Callable[[int], GateauError]


class Feature:
    """A feature's additions to the pipeline, as FEATURE in its module `feature`; none of them is required.

    Its other modules are found, too, and every name in them is optional:

    - `config`: SECTION.
    - `assets`: the functions that make its assets. RESOURCES: Dagster's resources for them, by their names. CHECKS: a
      tuple of `assets.runs.checks.WholeCheck`.
    - `checks`: `warnings(state)` and `losses(state, asset)`. `trusted(state)` returns lines of the trust panel, each a
      label and a sentence. `partition_digests(state)`: see Observed.partitions.
      `check_samples(state)` raises GateauError if the feature knows why there is no long sample. `learned(state,
      depends)` returns sentences on earlier forecasts beside their outcome, and the slopes that models show
      (`selection.forecast.Slopes`), or None. The first result counts.
    - `forecast`: `plan_parts(state, plan, assumed)` yields parts of `gateau plan`, see PlanPart in `cli/plan.py`.
      `check_start(state, plan)`, before the first of a refresh's runs, raises GateauError if one of them would fail.
      `check_plan(state, plan)`, before each, raises it if a server lacks its key, or if its budget does not suffice.
      `gateau validate` calls both without a plan, for all that is required.
    - `report`: `sections(state)` of the page, and `notes(state)` on its first screen, each markupsafe.Markup.
    - `commands`: COMMANDS, and TRIALS of `gateau validate`.
    - `method`: methods that score, as the modules of `methods`.
    - `error_codes.yaml`: cause and cure of its errors by code.
    - `forms`: `read_conversation(turns, tools, fields, how)` returns an id, and the texts of the samples, of a record
      with several turns or tools. `open_file(first)` returns a reader of the lines of a file that is one record; None
      if its first line, as JSON, does not show such a file.
    """

    scratch: tuple[str, ...] = ()
    """Folders in the work folder that nothing needs after a run."""
    partition_sets: tuple[PartitionSet, ...] = ()
    observed_sections: Mapping[str, tuple[str, ...]] = {}
    """The sections of the configuration that the `observe` of an asset may read, by the asset or its group."""
    variant_samples: Mapping[str, VariantSamples] = {}
    """The samples of the variants that SECTION names."""

    def prepare(self, config: Config, inputs: Inputs, progress: Progress) -> None:
        """Write inputs that the feature makes itself, if the configuration names them and they are missing."""

    def configuration(self, folder: Path) -> Config | None:
        """Return the configuration that is built in, which works in a folder; None if the feature has none."""
        del folder

    def planted(self, config: Config) -> Planted | None:
        """Return a function that finds planted facts in a context; None if the feature did not make the samples."""
        del config

    def is_built_in(self, store: Path) -> bool:
        """Return whether a local store was made from the data that the feature makes itself."""
        del store
        return False

    def model_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield checks that the models can serve the feature. They read no weights, and raise GateauError."""
        del config
        yield from ()

    def described_sections(self) -> Mapping[str, type[Section]]:
        """Return, by key, sections of the configuration that show the options of the feature, for the JSON schema."""
        return {}

    def check(self, config: Config) -> None:
        """Raise GateauError, with the place in the file, if the configuration lacks what the feature needs."""

    def completed(self, config: Config) -> Config:
        """Return the configuration with the options of the feature that the file leaves at their defaults."""
        return config

    def answer_template(self, config: Config) -> str | None:
        """Return the form in which the feature has models answer, as scoring.template; None for its default."""
        del config

    def first_lines(self, config: Config, accepts: Callable[[str], bool]) -> Iterator[str]:
        """Yield lines of a new configuration for training. accepts: whether the new one is valid with another line."""
        del config, accepts
        yield from ()

    def named_files(self, config: Config) -> Iterator[tuple[str, str | Sequence[str]]]:
        """Yield the places of the configuration that name files, and their paths, besides those of `inputs`."""
        del config
        yield from ()

    def reserved_documents(self, config: Config) -> ReservedDocuments | None:
        """Return which documents are reserved, and what counts as one; None if the feature reserves none, ever."""
        del config

    def machine_checks(self, config: Config) -> Iterator[Callable[[], object]]:
        """Yield checks that this machine has what the feature needs. They raise GateauError."""
        del config
        yield from ()

    def inputs(self, config: Config) -> Iterator[GivenFiles]:
        """Yield the files that the feature reads."""
        del config
        yield from ()

    def declare_first(self, config: Config) -> Iterator[Asset]:
        """Yield the assets that are made before the samples are scored, such as the samples themselves."""
        del config
        yield from ()

    def made_model(self, config: Config, name: str) -> Iterator[Asset]:
        """Yield the mix and the folder of a model that the pipeline makes, if the feature makes it."""
        del config, name
        yield from ()

    def declare_scores(self, config: Config) -> Iterator[Asset]:
        """Yield the assets that methods read, besides the tables that models compute for each sample."""
        del config
        yield from ()

    def declare(self, config: Config) -> Iterator[Asset]:
        """Yield the assets that the report shows, or that assets of the feature read."""
        del config
        yield from ()

    def beside(self, config: Config) -> Iterator[Asset]:
        """Yield the assets that a run keeps up to date, and that the report does not show."""
        del config
        yield from ()

    def declare_last(self, config: Config, shown: Sequence[str]) -> Iterator[Asset]:
        """Yield the assets that read every required one (`shown`, by key), such as a page."""
        del config, shown
        yield from ()

    def no_secrets(self, config: Config) -> frozenset[str]:
        """Return the hashes of the scanner's findings that the configuration accepts as harmless."""
        del config
        return frozenset()


@cache
def features() -> tuple[Feature, ...]:
    """Return all features, in the alphabetical order of their folders."""
    return tuple(feature_parts("feature", "FEATURE", Feature))


def hooks(module: str, name: str) -> list[FunctionType]:
    """Return the functions of this name in the modules of features, see Feature."""
    return [*feature_parts(module, name, FunctionType)]


def prepare_inputs(config: Config, inputs: Inputs = "data", progress: Progress = silent) -> None:
    """Write the inputs that features make themselves, if the configuration names them and they are missing."""
    for feature in features():
        feature.prepare(config, inputs, progress)


def completed(config: Config) -> Config:
    """Return the configuration with the options of all features that the file leaves at their defaults."""
    for feature in features():
        config = feature.completed(config)
    return config


def answer_template(config: Config) -> str | None:
    """Return the form in which models answer, see Feature; None for the default."""
    found = (feature.answer_template(config) for feature in features())
    return next((each for each in found if each is not None), None)


def built_in(folder: Path) -> Config:
    """Return the configuration that the product brings along, which works in a folder.

    Raises:
        GateauError: no feature has one.
    """
    found = (feature.configuration(folder) for feature in features())
    config = next((each for each in found if each is not None), None)
    if config is None:
        raise GateauError("config.unreadable", f"{DEMO}: this installation has no demo: name a file with --config.")
    return config


def is_built_in(store: Path) -> bool:
    """Return whether a local store was made from data that the product brings along."""
    return any(feature.is_built_in(store) for feature in features())


def planted_values(config: Config) -> Planted | None:
    """Return a function that finds planted facts in a context; None if no feature made the samples."""
    found = (feature.planted(config) for feature in features())
    return next((each for each in found if each is not None), None)
