"""Section about the ranking and what is taken from it."""

from typing import Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section

Preset = Literal["paper", "official", "robust"]
PRESETS: tuple[Preset, ...] = ("paper", "official", "robust")


class SelectionConfig(Section):
    """The final score and how many samples it chooses."""

    method: Literal["gateau"] = "gateau"
    preset: Preset = Field(default="robust", description="Normalisation of the two terms; the report shows all three.")
    alpha: float = Field(default=0.8, ge=0, le=1, description="Weight of HMP against CAS (Eq. 6).")
    fraction: float | None = Field(default=None, gt=0, le=1, description="Share of the scored samples to choose.")
    count: int | None = Field(default=None, ge=1, description="Number of samples to choose, instead of fraction.")
    ground_truth: list[str] = Field(
        default=[],
        description="Values of `source` known to need far context; with them the report shows each preset's AUROC.",
    )

    @model_validator(mode="after")
    def _one_rule(self) -> "SelectionConfig":
        if self.fraction is not None and self.count is not None:
            raise ValueError("give fraction or count, not both")
        return self

    def chosen(self, scored: int) -> int:
        """How many of `scored` samples are chosen; the default fraction is the paper's 0.1, and at least one."""
        if self.count is not None:
            return min(self.count, scored)
        return min(scored, max(1, round((self.fraction or 0.1) * scored)))
