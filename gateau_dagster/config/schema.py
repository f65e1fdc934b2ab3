"""Define the whole configuration: one section per concern. The store must be apart from the inputs."""

import fnmatch
import glob
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from pydantic import Field, PrivateAttr, create_model, model_validator

from gateau_dagster.config.base import Section, feature_sections, made_files, made_inputs
from gateau_dagster.config.execution import ExecutionConfig, check_devices
from gateau_dagster.config.inputs import LongSftConfig, ShortChatConfig, StorageConfig
from gateau_dagster.config.made_models import check_made_models
from gateau_dagster.config.models import ModelConfig, ScoringConfig
from gateau_dagster.config.selection import SelectionConfig
from gateau_dagster.config.training import WEIGHING, TrainedTurns, TrainingConfig
from gateau_dagster.config.variants import OtherModel, Variant, VariantsConfig, variants_of
from gateau_dagster.errors import GateauError
from gateau_dagster.registry import PluginFile, distinct, same_names

_MODEL_NAME = re.compile(r"^[A-Za-z0-9_]{1,100}\Z")


class Prefixes(NamedTuple):
    """The beginnings of a pipeline's names in Dagster, where one code location may hold several pipelines."""

    keys: tuple[str, ...] = ()
    groups: str = ""


class KernelConfig(Section):
    """A validated configuration. `folder`: the file's folder, the base of relative paths."""

    storage: StorageConfig = StorageConfig()
    long_sft: LongSftConfig
    short_chat: ShortChatConfig | None = None
    models: dict[str, ModelConfig] = Field(
        default={}, description="Models by name; GATEAU compares `short` and `long`."
    )
    scoring: ScoringConfig = ScoringConfig()
    selection: SelectionConfig = SelectionConfig()
    training: TrainingConfig = TrainingConfig()
    variants: VariantsConfig | None = Field(default=None, description="Models to compare in one experiment.")
    execution: ExecutionConfig = ExecutionConfig()
    folder: Path = Field(default=Path(), exclude=True)
    name: str = Field(default="", exclude=True, description="The file's name without its ending.")
    _prefixes: Prefixes = PrivateAttr(default=Prefixes())

    @property
    def prefixes(self) -> Prefixes:
        """Return the beginnings of the names in Dagster, which the code location decides, not the file."""
        return self._prefixes

    def prefixed(self, prefixes: Prefixes) -> Self:
        """Return this configuration with other beginnings of the names in Dagster."""
        found = self.model_copy()
        found._prefixes = prefixes
        return found

    @property
    def work_folder(self) -> Path:
        """Return the scratch folder beside the configuration: Dagster's home, caches, unfinished training. Safe to
        delete.

        A file with another name than gateau.yaml has its own, so that two configurations in a folder stay apart.
        """
        own = [] if self.name in {"", "gateau"} else [self.name]
        return (self.folder / ".gateau").joinpath(*own).absolute()

    def located(self, address: str) -> str:
        """Return the real path of an address: those of features resolved, others unchanged."""
        if (made := made_inputs().get(address)) is not None:
            return f"{self.located_root}{made.files}"
        maker = made_files(self, address)
        return address if maker is None else maker.located(self, address)

    def located_model(self, name: str) -> ModelConfig:
        """Return the configuration of a model with its real path."""
        model = self.models[name]
        return model.model_copy(update={"path": self.located(model.path)})

    @property
    def located_long_sft(self) -> LongSftConfig:
        """Return `long_sft` with real paths."""
        return self.long_sft.model_copy(update={"path": self._located_paths(self.long_sft.path)})

    @property
    def located_short_chat(self) -> ShortChatConfig | None:
        """Return `short_chat` with real paths."""
        if self.short_chat is None:
            return None
        return self.short_chat.model_copy(update={"path": self._located_paths(self.short_chat.path)})

    @property
    def made_inputs(self) -> list[str]:
        """Return the assets whose rows are long samples: `long_sft.path` reads what the pipeline makes itself."""
        return [made_inputs()[path].makes for path in _listed(self.long_sft.path) if path in made_inputs()]

    @property
    def located_root(self) -> str:
        """Return the store's root: a remote address unchanged, a local path made absolute from the configuration's
        folder.
        """
        root = self.storage.root
        return root if "://" in root else str((self.folder / Path(root).expanduser()).absolute())

    @cached_property
    def plugin_files(self) -> tuple[PluginFile, ...]:
        """Return the files of `selection.plugins`, read once. Raise GateauError for one that cannot be read."""
        paths = (self.folder / Path(path).expanduser() for path in self.selection.plugins)
        return tuple(PluginFile.read(path, place="selection.plugins") for path in paths)

    def _located_paths(self, paths: str | list[str]) -> str | list[str]:
        return self.located(paths) if isinstance(paths, str) else [self.located(path) for path in paths]

    @model_validator(mode="before")
    @classmethod
    def _nothing_to_train(cls, data: Any) -> Any:
        # A file that only chooses samples needs no section `training`.
        if isinstance(data, dict) and not data.get("models") and data.get("training") is None:
            return {**data, "training": {"enabled": False}}
        return data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name in self.models:
            if not _MODEL_NAME.match(name):
                raise GateauError(
                    "config.name",
                    f"models.{name}: the name is part of an asset key: use letters, digits and _, at most 100",
                )
        if (same := same_names(self.models)) is not None:
            raise GateauError(
                "config.name",
                f"models.{same[1]}: the name differs from {same[0]} in case only, and names a file: choose another",
            )
        if self.training.mix.without_long and self.short_chat is None:
            raise GateauError(
                "training.no_conversations",
                "training.mix.without_long: leaves only the conversations of short_chat, which is missing: add "
                "it, or remove the key",
            )
        if self.training.enabled and self.training.weighs_in_mix and not self.has_pair:
            raise GateauError(
                WEIGHING[self.training.loss],
                f"training.loss: {self.training.loss} weighs tokens by their probabilities under models.short and "
                "models.long: configure both, or set loss: token",
            )
        windowed = self.has_pair and self.models["short"].context == "window"
        if self.training.enabled and self.training.trim and not windowed:
            raise GateauError(
                "training.trim",
                "training.trim: cuts contexts to the tokens that models.short is shown: configure models.short with "
                "`context: window` beside models.long, or remove the key",
            )
        self._check_tasks()
        for section in feature_sections():
            section.check(self)
        check_devices(self.execution, self.scoring)
        check_made_models(self.models, self.training, segment_length=self.scoring.segment_length)
        for name, path in self.addresses():
            try:
                self.located(path)
            except GateauError as error:
                raise error.reworded(f"{name}: {error}") from error
        return self

    def _check_tasks(self) -> None:
        """Check that the models that GATEAU compares, and the one that is trained, generate text."""
        for name in dict.fromkeys(["short", "long", self.training.model]):
            if name in self.models and self.models[name].task != "causal":
                raise GateauError(
                    "models.task",
                    f"models.{name}.task: is {self.models[name].task}, but this model must be causal: remove task",
                )
        for name, model in self.models.items():
            if model.opening and self.scoring.template == "chat":
                raise GateauError(
                    "models.demonstrations",
                    f"models.{name}.demonstrations: needs scoring.template: gateau, but it is chat: change it, or "
                    "remove the demonstrations",
                )

    @property
    def has_pair(self) -> bool:
        """Return whether theta_A and theta_B are configured, which GATEAU compares; other methods do not need them."""
        return {"short", "long"} <= {*self.models}

    @property
    def causal_models(self) -> list[str]:
        """Return the models with a table `perplexity/<model>`."""
        return [name for name, model in self.models.items() if model.task == "causal"]

    @property
    def made_models(self) -> list[str]:
        """Return the models that the pipeline makes, as `pre_experienced/<model>` or `homologous_model/<model>`."""
        return [name for name, model in self.models.items() if model.base is not None]

    @property
    def pre_experienced_models(self) -> list[str]:
        """Return the made models that are trained on samples of the data before they score."""
        return [name for name in self.made_models if not self.models[name].is_homologous]

    @property
    def homologous_models(self) -> list[str]:
        """Return the made models that are trained on long texts."""
        return [name for name in self.made_models if self.models[name].is_homologous]

    @property
    def variant_set(self) -> dict[str, Variant]:
        """Return the compared models by name: base, checkpoint and those of `variants`."""
        found = variants_of(self.variants, method=self.selection.method, trains=self.training.enabled)
        return {variant.name: variant for variant in found}

    @property
    def other_models(self) -> dict[str, OtherModel]:
        """Return the models that are not trained here, by the variants' names."""
        return {name: each.other for name, each in self.variant_set.items() if each.other is not None}

    @property
    def trained_turns(self) -> TrainedTurns:
        """Return `training.trained_turns`; if it is null, `last` for `long_sft.turns: each`, else `all`."""
        return self.training.trained_turns or ("last" if self.long_sft.turns == "each" else "all")

    def origin(self, model: str) -> str:
        """Return the model whose folder or hub name is known beforehand: itself, or the one that it is made from."""
        return self.models[model].base or model

    def addresses(self) -> Iterator[tuple[str, str]]:
        """Yield every address of an input or a model, after its name in the file."""
        inputs = {
            "long_sft.path": self.long_sft.path,
            "short_chat.path": self.short_chat.path if self.short_chat else [],
        }
        for name, paths in inputs.items():
            for path in _listed(paths):
                yield name, path
        for name, model in self.models.items():
            yield f"models.{name}.path", model.path


if TYPE_CHECKING:
    Config = KernelConfig
else:
    # Type checkers know the kernel's sections only: a feature reads its own by FeatureSection.of.
    of_features = [(each.key, each.field) for each in feature_sections()]
    distinct([*KernelConfig.model_fields.items(), *of_features], "key of the configuration")
    Config = create_model(
        "Config",
        __base__=KernelConfig,
        __module__=__name__,
        __doc__=KernelConfig.__doc__,
        **dict(of_features),
    )


def _listed(paths: str | list[str]) -> list[str]:
    return [paths] if isinstance(paths, str) else paths


_WRITTEN = ("0.parquet", "comparison.json")  # examples of names of tables and documents
_ANY_DEPTH = "**"


def check_store_apart(config: Config) -> None:
    """Check that no folder of input and no model's folder contains the store.

    Raises:
        GateauError: a folder contains the store.
    """
    for name, path in _addresses(config):
        if _takes_in(path, config):
            raise GateauError(
                "storage.root_in_input",
                f"storage.root: {config.storage.root} is inside {path!r} ({name}), whose files are all read as input. "
                "Move one of the two to another folder",
            )


def _addresses(config: Config) -> Iterator[tuple[str, str]]:
    yield from config.addresses()
    for name in config.homologous_models:
        options = config.models[name].homologous
        assert options is not None
        for paths in (options.texts, options.short_texts):
            yield from ((f"models.{name}.homologous", path) for path in _listed(paths or []))


def _takes_in(path: str, config: Config) -> bool:
    root = config.located_root
    if "://" in path or "://" in root:
        return f"{root.rstrip('/')}/".startswith(f"{path.rstrip('/')}/")
    place = config.folder / Path(config.located(path)).expanduser()
    if not place.exists() and _ANY_DEPTH in place.parts:
        if not any(fnmatch.fnmatch(name, place.name) for name in _WRITTEN):
            return False
        place = Path(*place.parts[: next(number for number, part in enumerate(place.parts) if glob.has_magic(part))])
    inner, outer = Path(root).resolve(), place.resolve()
    if not place.is_dir() or not inner.is_relative_to(outer):
        return False
    return not any(part.startswith(".") for part in inner.relative_to(outer).parts)  # hidden folders are not read
