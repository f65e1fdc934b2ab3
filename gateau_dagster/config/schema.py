"""The whole configuration: one section per concern (design, section 4)."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section
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
    folder: Path = Field(default=Path(), exclude=True)

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
        return self
