"""One loss in figures and in a sentence: tokens that were cut off, and what a table lost."""

from dataclasses import dataclass

import polars as pl

from gateau_dagster.config.inputs import NOTABLE_REJECTS
from gateau_dagster.readable import percentage, plural

# A token that is cut off is as lost as one of a rejected sample, so the same share of them is worth a warning.
NOTABLE_CUT = NOTABLE_REJECTS


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One table's loss in a sentence. notable: worth a warning. intended: see Truncation."""

    asset: str
    sentence: str
    notable: bool
    intended: bool = False


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """What a limit cuts off `samples`: `cut` of them lose something, in all `cut_tokens` of their `tokens`.

    limit: why. intended: whether the configuration shows the model its own window only. nouns: what is counted.
    """

    samples: int
    cut: int
    tokens: int
    cut_tokens: int
    limit: str
    intended: bool = False
    nouns: tuple[str, str] = ("sample", "context tokens")

    @property
    def share(self) -> float:
        """Of the tokens."""
        return self.cut_tokens / self.tokens if self.tokens else 0.0

    @property
    def notable(self) -> bool:
        """Whether it is worth a warning."""
        return not self.intended and self.share > NOTABLE_CUT

    def sentence(self, about: str = "") -> str:
        """`190 of 200 samples cut, 9,000 of 10,000 context tokens (90 %) lost: …`. about: before counts."""
        one, tokens = self.nouns
        return (
            f"{about}{self.cut:,} of {plural(self.samples, one)} cut, {about}{self.cut_tokens:,} of {self.tokens:,} "
            f"{tokens} ({percentage(self.share)}) lost: {self.limit}"
        )


def truncation_among(kept: pl.Series, cut: pl.Series, *, limit: str, intended: bool = False) -> Truncation:
    """Sums up what is kept and what is cut off each sample, in tokens."""
    lost = int(cut.cast(pl.Int64).sum())
    return Truncation(
        samples=cut.len(),
        cut=int((cut > 0).sum()),
        tokens=int(kept.cast(pl.Int64).sum()) + lost,
        cut_tokens=lost,
        limit=limit,
        intended=intended,
    )
