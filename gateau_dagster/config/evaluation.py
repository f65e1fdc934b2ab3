"""The section about how the checkpoint is compared with its base model."""

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from gateau_dagster.config.base import Section


class Gate(Section):
    """Which loss against the reference is too much."""

    benchmark: str = Field(description="One of evaluation.benchmarks that gives a value to each question.")
    margin: float = Field(ge=0, description="In the benchmark's unit: a loss up to it is none.")
    variant: str | None = Field(default=None, description="Default: each that is set against the reference.")


class EvaluationConfig(Section):
    """Which benchmarks run after training.

    Beside these keys each benchmark has its own section, by its name; see evaluation.registry, which validates them.
    """

    model_config = ConfigDict(extra="allow")

    enabled: bool = True
    benchmarks: Annotated[tuple[str, ...], Field(strict=False)] | None = Field(
        default=None, description="Names; default: those that run by default."
    )
    reference: str | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="The variant that others are set against; default: the model before training.",
    )
    gate: Gate | None = Field(
        default=None, exclude_if=lambda value: value is None, description="Default: no loss fails a check."
    )

    @property
    def sections(self) -> dict[str, Any]:
        """The benchmarks' own sections by name, as they stand in the file."""
        return self.model_extra or {}
