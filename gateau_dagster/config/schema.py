"""The whole configuration: one section per concern (design, section 4)."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.demo import DEMO_SCHEME, DemoConfig, demo_path
from gateau_dagster.config.evaluation import EvaluationConfig
from gateau_dagster.config.inputs import LongSftConfig, ShortChatConfig, StorageConfig
from gateau_dagster.config.models import ModelConfig, ScoringConfig
from gateau_dagster.config.selection import SelectionConfig
from gateau_dagster.config.training import TrainingConfig

_MODEL_NAME = re.compile(r"^[A-Za-z0-9_]+$")


class ExecutionConfig(Section):
    """How Dagster runs the steps; changes no result."""

    executor: Literal["in_process", "multiprocess"] = "in_process"
    max_concurrent: int = Field(default=1, ge=1, description="Steps at a time, with the multiprocess executor.")
    shards_per_run: int = Field(default=64, ge=1, description="Shards of one backfill run, which loads a model once.")
    retries: int = Field(default=2, ge=0, description="Of a step that fails in passing, with exponential back-off.")
    schedule: str = Field(default="0 3 * * *", description="Cron line of the nightly refresh, which is off by default.")


class Config(Section):
    """A validated configuration. `folder` is where relative paths start: the file's folder."""

    storage: StorageConfig = StorageConfig()
    long_sft: LongSftConfig
    short_chat: ShortChatConfig | None = None
    models: dict[str, ModelConfig]
    scoring: ScoringConfig = ScoringConfig()
    selection: SelectionConfig = SelectionConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    execution: ExecutionConfig = ExecutionConfig()
    demo: DemoConfig | None = Field(default=None, description="Builds what paths that start with demo: name.")
    folder: Path = Field(default=Path(), exclude=True)

    @property
    def work_folder(self) -> Path:
        """Scratch space beside the configuration: Dagster's home, caches, unfinished training. Safe to delete."""
        return (self.folder / ".gateau").absolute()

    def located(self, address: str) -> str:
        """The real path of an address: `demo:` ones resolved, anything else as it is."""
        if self.demo is None or not address.startswith(DEMO_SCHEME):
            return address
        return demo_path(address, self.work_folder, self.demo)

    def located_model(self, name: str) -> ModelConfig:
        """The configuration of a model with its real path."""
        model = self.models[name]
        return model.model_copy(update={"path": self.located(model.path)})

    @property
    def located_long_sft(self) -> LongSftConfig:
        """`long_sft` with real paths."""
        return self.long_sft.model_copy(update={"path": self._located_paths(self.long_sft.path)})

    @property
    def located_short_chat(self) -> ShortChatConfig | None:
        """`short_chat` with real paths."""
        if self.short_chat is None:
            return None
        return self.short_chat.model_copy(update={"path": self._located_paths(self.short_chat.path)})

    @property
    def located_root(self) -> str:
        """The store's root: an address as it is, a local path made absolute from the configuration's folder."""
        root = self.storage.root
        return root if "://" in root else str((self.folder / Path(root).expanduser()).absolute())

    def _located_paths(self, paths: str | list[str]) -> str | list[str]:
        return self.located(paths) if isinstance(paths, str) else [self.located(path) for path in paths]

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        missing = [name for name in ("short", "long") if name not in self.models]
        if missing:
            raise ValueError(f"models lacks {' and '.join(missing)}: GATEAU compares a short and a long model")
        for name in self.models:
            if not _MODEL_NAME.match(name):
                raise ValueError(f"models.{name}: a model's name becomes an asset key: letters, digits and _ only")
        if self.training.model not in self.models:
            raise ValueError(f"training.model: {self.training.model!r} is none of models ({', '.join(self.models)})")
        if self.demo is None and any(path.startswith(DEMO_SCHEME) for path in self._paths()):
            raise ValueError(f"a path starts with {DEMO_SCHEME} but there is no demo section")
        return self

    def _paths(self) -> list[str]:
        """Every address of an input or a model."""
        inputs = [self.long_sft.path, self.short_chat.path if self.short_chat else []]
        listed = [path for paths in inputs for path in ([paths] if isinstance(paths, str) else paths)]
        return [*listed, *(model.path for model in self.models.values())]
