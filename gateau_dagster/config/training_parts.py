"""Sections of `training` that are off unless they are written down: position skips, and low-rank adapters."""

from typing import Literal

from pydantic import Field

from gateau_dagster.config.base import Section


class SkipConfig(Section):
    """SkipAlign (Wu et al. 2024, Eq. 2-4): positions that skip, so that short samples hold long distances."""

    strategy: Literal["all", "inner", "outer"] = Field(
        default="outer",
        description="Where a skip may stand: before every block but the first, before responses, before the "
        "instructions of later turns.",
    )
    length: int = Field(default=100_000, ge=2, description="L: every position stays below it.")
    probability: float = Field(
        default=0.5, ge=0, le=1, description="p: of a skip at each place where one may stand; 0: none."
    )


class LoraConfig(Section):
    """Low-rank adapters (peft), merged into the weights when the training is over."""

    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=32, gt=0, description="The update is scaled by alpha / rank.")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    modules: list[str] | Literal["all-linear"] = Field(
        default="all-linear", description="Names of the layers that get an adapter; all-linear leaves out the head."
    )
