"""Count what the asset checks report: repeated ids, non-finite values, missing samples, reserved samples in a mix."""

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """The coverage of the data set's samples by a table and its rejects."""

    samples: int
    in_table: int
    rejected: int
    missing: list[str]
    unknown: list[str]

    @property
    def complete(self) -> bool:
        """Return True if every sample is in the table or rejected, none is in both, and nothing else is in either."""
        return not self.missing and not self.unknown and self.in_table + self.rejected == self.samples


def duplicate_ids(table: pl.DataFrame) -> list[str]:
    """Return the ids that are in the table more than once."""
    return table.filter(pl.col("sample_id").is_duplicated())["sample_id"].unique().sort().to_list()


def non_finite(values: pl.Series) -> int:
    """Return how many values (or values of lists) are null, NaN or infinite."""
    if isinstance(values.dtype, pl.List):
        # An empty list holds no value; whether it explodes to a null depends on the version of Polars.
        return values.null_count() + non_finite(values.filter(values.list.len().fill_null(0) > 0).explode())
    return int((~values.is_finite().fill_null(False)).sum())


def reserved_among(mix: pl.DataFrame, split: pl.DataFrame) -> list[str]:
    """Return the ids of the long samples of a training mix whose documents are reserved.

    Args:
        mix: `sample_id` and `origin`.
        split: tables.DOCUMENT_SPLIT.
    """
    trained = mix.filter(pl.col("origin") == "long").join(split, on="sample_id")
    documents = split.filter("reserved").select("document").unique()
    return trained.join(documents, on="document")["sample_id"].unique().sort().to_list()


def scored_or_rejected(raw: pl.DataFrame, table: pl.DataFrame, rejected: pl.DataFrame) -> Coverage:
    """Compare the ids of the data set with those of a table and its rejected samples."""
    everything, scored = set(raw["sample_id"]), set(table["sample_id"])
    rejected_ids = set(rejected["sample_id"])
    return Coverage(
        samples=len(everything),
        in_table=len(scored),
        rejected=len(rejected_ids),
        missing=sorted(everything - scored - rejected_ids),
        unknown=sorted((scored | rejected_ids) - everything),
    )
