"""The section about how the checkpoint is compared with its base model."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.judge import JudgeConfig


class EvaluationConfig(Section):
    """Which benchmarks run after training.

    Beside these keys each benchmark has its own section, by its name; see evaluation.registry, which validates them.
    """

    model_config = ConfigDict(extra="allow")

    enabled: bool = True
    benchmarks: Annotated[tuple[str, ...], Field(strict=False)] | None = Field(
        default=None, description="Names; default: those that run by default."
    )
    judge: JudgeConfig | None = Field(
        default=None, exclude_if=lambda judge: judge is None, description="Rates answers, for benchmarks that ask one."
    )

    @property
    def sections(self) -> dict[str, Any]:
        """The benchmarks' own sections by name, as they stand in the file."""
        return self.model_extra or {}
