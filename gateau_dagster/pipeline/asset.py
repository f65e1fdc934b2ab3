"""Declare an asset: the planner, Dagster's assets, checks, jobs and documents are all made from this."""

# Why a declaration and not a class with methods: planner, Dagster, checks and jobs must agree on what an asset reads
# and which settings count. Two descriptions of it would drift apart. A declaration runs nothing, so a plan needs no
# model and no Dagster.
#
# Why settings are named one by one: a fingerprint of the whole configuration would compute everything again after a
# change of the device. The price: a setting that is forgotten leaves a stale table current. So a setting belongs into
# `settings` where in doubt.

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.scoring.sample_table import SampleTable
from gateau_dagster.storage.stamp import By, Stamp, fingerprint

# Names of partition sets. An asset without one is a single output over the whole data set.
SHARD = "shard"
# Models that are compared with one another: see config.variants.
VARIANT = "variant"

# Names of asset checks; `up_to_date` is every asset's.
UP_TO_DATE = "up_to_date"
UNIQUE_IDS = "unique_ids"
FINITE_VALUES = "finite_values"
FULL_COVERAGE = "full_coverage"
NORMALISATION = "normalisation"
REJECTED_SHARE = "rejected_share"
TRUNCATED_SHARE = "truncated_share"
NOTHING_RESERVED = "nothing_reserved"
FAR_SHARE = "far_share"
RESPONSE_SHARE = "response_share"

# Keys of inputs.
LONG, CHAT = "input/long_sft", "input/short_chat"
# The first parts of the keys of models that the pipeline makes.
HOMOLOGOUS, PRE_EXPERIENCED = "homologous_model", "pre_experienced"


def method_key(name: str) -> str:
    """Return the key of the files that a method reads."""
    return f"input/{name}_file"


def model_key(name: str) -> str:
    """Return the key of a model that exists already. The graph shows only the part behind the slash, so it says what it
    is.
    """
    return f"input/{name}_model"


def origin_key(config: Config, model: str) -> str:
    """Return the key of the existing model that this one is, or is made from."""
    return model_key(config.origin(model))


def other_key(variant: str) -> str:
    """Return the key of a model of `variants.also`."""
    return f"input/variant_{variant}_model"


def made_asset(config: Config, model: str) -> str:
    """Return the asset, a folder in the store, that holds this model."""
    return f"{HOMOLOGOUS if config.models[model].is_homologous else PRE_EXPERIENCED}/{model}"


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The state outside configuration and store that results depend on.

    model_digests: `models.model_digest` of every configured model.
    short_chat: changes with the short conversations' files; None without any.
    others: digests of the models of `variants.also`, by the variants' names.
    files: by method that reads files, changes with their content.
    partitions: by partition of a feature's set, or by key of its input, changes with the content.
    instructions: changes with what is left out of the documents that are compared; empty if nothing is.
    frames: by configured model, `chat_rendering.frame_change` of its chat template; only templates that make a change.
    """

    model_digests: Mapping[str, str]
    short_chat: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, str] = field(default_factory=dict)
    instructions: str = ""
    frames: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def frame(self, model: str) -> tuple[str, str]:
        """Return the change that the chat template of a model makes to its generation prompt."""
        return self.frames.get(model, ("", ""))


# Returns settings that are known only from `Observed`, such as the digest of a model.
Observe: TypeAlias = Callable[[Observed], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One partition of an asset whose partitions are made from different upstreams or settings.

    reads: which of the asset's `reads` it reads.
    settings, observe: what changes it besides the asset's own.
    folders: a folder of the store. In it is the model that the partition's table describes, named by the partition's
        fingerprint. Without that model the table counts as missing. Empty if there is none.
    """

    reads: Mapping[str, By] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    observe: Observe | None = None
    folders: str = ""

    def resolved(self, observed: Observed) -> Self:
        """Return it with all settings known."""
        return replace(self, settings=_all_settings(self, observed), observe=None)


@dataclass(frozen=True, kw_only=True)
class Asset:
    """One asset, declared once. The planner compares it with the store when it is `resolved`.

    key: its name, parts separated by `/`; its table's path in the store.
    of: in a family of assets, what the part behind the slash names, such as a model.
    maker: the function in `assets/` that makes it; several assets may share one.
    partitions: name of its partition set, or empty.
    inputs: what it reads from outside, by the keys of `inputs`. Its settings, or the input of each shard, give the
        version.
    reads: its upstreams, and how each counts.
    parts: by partition, where partitions are made from different upstreams or settings; `reads` names all their
        upstreams.
    settings: every part of the configuration that changes its result, and nothing else.
    observe: returns more settings, which depend on `Observed`; None if there are none, or if it is `resolved`.
    code_version: raised when its code changes a result; defined beside that code.
    columns: of its table; empty if it has no table.
    finite: the columns that must hold finite numbers, or null if the column may be null.
    checks: names of its asset checks besides `up_to_date`.
    summary: what it holds, for a list of assets.
    description: a longer text for its page; the summary if empty.
    file: the name of a document in the store.
    further_files: documents made with it, and what each shows; if one is missing, the asset counts as missing.
    folder: whether it is a model's folder.
    goal: whether it is made for its own sake; others are made for the assets that read them.
    own_rejects: whether it rejects samples for reasons that no table before it had.
    pool: the pool of steps that wait for one another, such as those that take a GPU.
    table: computes its rows one by one: rows are kept while what computes them stays the same. None for other assets.
    model: the upstream, compared by content, that is the model which computes the rows; empty for a model that exists
        already, which counts by its digest in the settings.
    means: digest of the settings that change no row but decide which rows can be computed (what fits into memory, which
        server replies). Missing rows are tried again when it changes.
    variant: the only partition that it reads of assets with one per variant; empty if it reads all.
    elsewhere: returns how the present revision of an output outside the store differs from its stamp, whose content is
        the revision that Dagster shows as data version. An empty text: it does not. None: the output is in the store.
    needs: raises GateauError if this machine lacks what making it needs, such as a token; None if it needs nothing.
    """

    key: str
    of: str = ""
    maker: str
    group: str
    kinds: tuple[str, ...]
    summary: str
    description: str = ""
    partitions: str = ""
    inputs: tuple[str, ...] = ()
    reads: Mapping[str, By] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    observe: Observe | None = None
    code_version: str
    columns: tuple[tables.Column, ...] = ()
    finite: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    file: str = ""
    further_files: Mapping[str, str] = field(default_factory=dict)
    folder: bool = False
    goal: bool = False
    own_rejects: bool = True
    pool: Literal["", "gpu"] = ""
    table: SampleTable | None = None
    model: str = ""
    means: str = ""
    parts: Mapping[str, Part] = field(default_factory=dict)
    variant: str = ""
    elsewhere: Callable[[Stamp], str] | None = None
    needs: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        assert all(part.reads.items() <= self.reads.items() for part in self.parts.values()), self.key

    @property
    def family(self) -> str:
        """Return the first part of its key."""
        return self.key.split("/", maxsplit=1)[0]

    @property
    def shown_group(self) -> str:
        """Return its group on the graph, where a node shows only the last part of its key. A family is a separate
        group: `perplexity/short` is `short` in `perplexity`.
        """
        return self.family if "/" in self.key else self.group

    @property
    def pattern(self) -> str:
        """Return its key, or that of its family: `perplexity/<model>`."""
        return f"{self.family}/<{self.of}>" if self.of else self.key

    @property
    def step(self) -> str:
        """Return the name of the Dagster step that makes it together with others; empty for a separate step."""
        shared = None if self.table is None else self.table.shared
        return "" if shared is None else shared.name

    @property
    def reads_input(self) -> bool:
        """Return whether each partition is made from its part of the input."""
        return bool(self.partitions) and not self.reads and not self.parts

    @property
    def scorer(self) -> str:
        """Return the digest of what computes a row besides `model`; empty if rows are not computed one by one."""
        return "" if self.table is None else fingerprint({"code": self.code_version, **self.settings})

    def resolved(self, observed: Observed) -> Self:
        """Return it with all settings known.

        Raises:
            GateauError: a setting cannot be determined, such as that of a missing file.
        """
        # Once for all outputs: an `observe` may read files, such as a DeepSpeed configuration.
        parts = {name: part.resolved(observed) for name, part in self.parts.items()}
        return replace(self, settings=_all_settings(self, observed), observe=None, parts=parts)

    def of_partition(self, partition: str | None) -> Self:
        """Return the inputs and settings of one partition: the asset itself unless its partitions differ."""
        # Most assets have one declaration for all partitions, so that nothing is copied for each of thousands of
        # shards.
        if partition is None or not self.parts:
            return self
        part = self.parts[partition]
        settings = {**self.settings, **part.settings}
        return replace(self, reads=part.reads, settings=settings, parts={partition: part})

    def row_scorer(self, versions: Mapping[str, str]) -> str:
        """Return the digest of all that computes a row: rows with another digest are never kept.

        Args:
            versions: of the upstreams.
        """
        if not self.model:
            return self.scorer
        assert self.reads[self.model] == "content", "a model that came out the same computes the same rows"
        return fingerprint({"scorer": self.scorer, "model": versions[self.model]})

    def made_from(self, versions: Mapping[str, str]) -> dict[str, Any]:
        """Return the parts of the fingerprint by name, as the stamp keeps them. `versions`: of the upstreams."""
        # `observe` must be resolved before: otherwise a fingerprint without the model's digest would count as current
        # for any model.
        assert set(versions) >= set(self.reads), (self.key, versions)
        assert self.observe is None, f"{self.key} is not resolved"
        return {"code": self.code_version, "settings": dict(self.settings), "upstream": dict(versions)}

    def fingerprint(self, versions: Mapping[str, str]) -> str:
        """Return the data version of the output made from these upstream versions."""
        return fingerprint({"asset": self.key, **self.made_from(versions)})

    def data_version(self, stamp: Stamp) -> str:
        """Return the version that Dagster shows for an output with this stamp."""
        return stamp.content if self.elsewhere is not None else stamp.fingerprint

    def is_current(self, stamp: Stamp | None, wanted: str) -> bool:
        """Return whether an output with this stamp is up to date, or as complete as the current `means` allow."""
        # A table with missing rows is up to date until a setting changes that may make them computable. Otherwise each
        # run would try again what did not fit.
        if stamp is None or not stamp.lacking:
            return stamp is not None and stamp.fingerprint == wanted
        return stamp.complete == wanted and stamp.lacking == self.means


def _all_settings(declared: Part | Asset, observed: Observed) -> dict[str, Any]:
    further = {} if declared.observe is None else declared.observe(observed)
    return {**declared.settings, **further}
