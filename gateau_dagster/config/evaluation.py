"""Sections about how the checkpoint is compared with its base model."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section

Benchmark = Literal["heldout", "needle"]
Tokens = Annotated[int, Field(ge=1)]


class HeldoutConfig(Section):
    """Response perplexity on samples that were not trained on, by context length."""

    samples: int = Field(default=64, ge=1, description="Held-out samples, taken evenly from the length buckets.")
    buckets: list[Tokens] = Field(
        default=[4096, 8192, 16_384, 32_768],
        min_length=1,
        description="Upper ends of the context-length buckets, in tokens.",
    )


class NeedlePair(Section):
    """A key that is asked for, and the values it may have."""

    key: str
    values: list[str] = Field(min_length=2)


class NeedleConfig(Section):
    """A fact hidden at a depth of a haystack of a length, and asked for at its end."""

    lengths: list[Tokens] = Field(
        default=[1024, 2048, 4096, 8192], min_length=1, description="Prompt lengths in tokens."
    )
    depths: list[float] = Field(default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1)
    repeats: int = Field(default=3, ge=1, description="Needles per cell of the grid.")
    fact: str = Field(default=" The secret number of {key} is {value}. ", description="With {key} and {value}.")
    question: str = Field(default="What is the secret number of {key}?", description="With {key}.")
    answer: str = Field(default="{value}", description="With {key} and {value}.")
    pairs: list[NeedlePair] | None = Field(default=None, description="Default: cities and seven-digit numbers.")

    @model_validator(mode="after")
    def _placeholders(self) -> "NeedleConfig":
        for name, text, wanted in (
            ("fact", self.fact, ("{key}", "{value}")),
            ("question", self.question, ("{key}",)),
            ("answer", self.answer, ("{value}",)),
        ):
            missing = [placeholder for placeholder in wanted if placeholder not in text]
            if missing:
                raise ValueError(f"{name} lacks {' and '.join(missing)}")
        if any(not 0 <= depth <= 1 for depth in self.depths):
            raise ValueError("depths lie between 0 (start of the context) and 1 (its end)")
        return self


class EvaluationConfig(Section):
    """Which benchmarks run after training."""

    enabled: bool = True
    benchmarks: tuple[Benchmark, ...] = ("heldout", "needle")
    heldout: HeldoutConfig = HeldoutConfig()
    needle: NeedleConfig = NeedleConfig()
