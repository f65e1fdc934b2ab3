"""What is hidden in the haystack, where, and how it is asked for."""

from __future__ import annotations

import random
from typing import Annotated

from pydantic import Field, model_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST

_CITIES = ("Lisbon", "Nairobi", "Toronto", "Osaka", "Cusco", "Tallinn", "Hanoi", "Perth", "Bergen", "Tunis")


class NeedlePair(Section):
    """A key that is asked for, and the values it may have."""

    key: str
    values: list[str] = Field(min_length=2)


class NeedleOptions(Section):
    """A fact hidden at a depth of a haystack of a length, and asked for at its end."""

    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[1024, 2048, 4096, 8192], min_length=1, description="Prompt lengths in tokens."
    )
    depths: list[float] = Field(default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1)
    repeats: int = Field(default=3, ge=1, le=10_000, description="Needles per cell of the grid.")
    fact: str = Field(default=" The secret number of {key} is {value}. ", description="With {key} and {value}.")
    question: str = Field(default="What is the secret number of {key}?", description="With {key}.")
    answer: str = Field(default="{value}", description="With {key} and {value}.")
    pairs: list[NeedlePair] | None = Field(default=None, description="Default: cities and seven-digit numbers.")

    @model_validator(mode="after")
    def _placeholders(self) -> NeedleOptions:
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


def default_pairs() -> list[NeedlePair]:
    """Ten cities with eight seven-digit numbers each; the same on every machine."""
    rng = random.Random("needle")
    return [NeedlePair(key=city, values=[str(rng.randrange(10**6, 10**7)) for _ in range(8)]) for city in _CITIES]
