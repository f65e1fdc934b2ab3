"""Define the configuration, one validated YAML file."""

from gateau_dagster.config.inputs import LongSftConfig, ShortChatConfig, StorageConfig
from gateau_dagster.config.models import ModelConfig, ScoringConfig
from gateau_dagster.config.schema import Config, ExecutionConfig, Prefixes
from gateau_dagster.config.selection import PRESETS, Preset, SelectionConfig
from gateau_dagster.config.training import TrainingConfig

__all__ = [
    "PRESETS",
    "Config",
    "ExecutionConfig",
    "LongSftConfig",
    "ModelConfig",
    "Prefixes",
    "Preset",
    "ScoringConfig",
    "SelectionConfig",
    "ShortChatConfig",
    "StorageConfig",
    "TrainingConfig",
]
