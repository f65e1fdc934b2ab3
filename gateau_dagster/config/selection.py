"""Section about the ranking and what is taken from it."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from gateau_dagster.config.rules import RuleConfig

Preset = Literal["paper", "official", "robust"]
PRESETS: tuple[Preset, ...] = ("paper", "official", "robust")
# The paper's, and that of terms which are both probabilities.
ALPHA: dict[Preset, float] = {"paper": 0.8, "official": 0.8, "robust": 0.5}


def alpha_of(preset: Preset, alpha: float | None) -> float:
    """The weight of HMP under a preset: `alpha`, or the preset's own where that is None."""
    return ALPHA[preset] if alpha is None else alpha


class SelectionConfig(RuleConfig):
    """What ranks the samples, and which of them are chosen."""

    method: str = Field(default="gateau", description="What ranks the samples: gateau, or another of the methods.")
    compare: list[str] = Field(default=[], description="Methods to score, too, and to compare in the report.")
    options: dict[str, dict[str, Any]] = Field(
        default={}, description="Options of methods by their names, for example ladm: {span_length: 64}."
    )
    preset: Preset = Field(default="robust", description="Normalisation of the two terms; the report shows all three.")
    alpha: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of HMP against CAS (Eq. 6); default: 0.5 for robust, 0.8 for paper and official.",
    )
    segment_lengths: list[Annotated[int, Field(ge=1)]] = Field(
        default=[],
        description="Further segment lengths (tokens) to compute and to compare in the report; scoring.segment_length "
        "is always compared, and naming it here changes nothing.",
    )
    ground_truth: list[str] = Field(
        default=[],
        description="Values of `source` known to need far context; with them the report shows each preset's AUROC.",
    )

    @field_validator("segment_lengths")
    @classmethod
    def _each_once(cls, lengths: list[int]) -> list[int]:
        repeated = sorted({length for length in lengths if lengths.count(length) > 1})
        if repeated:
            raise ValueError(f"{', '.join(map(str, repeated))} stands there more than once: name each length once")
        return lengths

    @property
    def alphas(self) -> dict[Preset, float]:
        """The weight of HMP under every preset."""
        return {preset: alpha_of(preset, self.alpha) for preset in PRESETS}
