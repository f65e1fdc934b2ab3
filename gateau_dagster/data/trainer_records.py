"""Turn chosen samples into the records that trainers read."""

import polars as pl

from gateau_dagster.errors import GateauError
from gateau_dagster.readable import nearest_name

_TURN = pl.Struct({"role": pl.String(), "content": pl.String()})
_SHAREGPT_TURN = pl.Struct({"from": pl.String(), "value": pl.String()})
# LongAlign's form: document, blank line, instruction, as models.prompt.chat_frame shows it to a chat template.
_USER = (
    pl.when(pl.col("context") == "")
    .then(pl.col("instruction"))
    .otherwise(pl.concat_str("context", pl.lit("\n\n"), "instruction"))
)
_ANSWER = pl.col("response")


def _turn(role: str, content: pl.Expr) -> pl.Expr:
    return pl.struct(pl.lit(role).alias("role"), content.alias("content"))


def _turns(*turns: pl.Expr, dtype: pl.Struct = _TURN) -> pl.Expr:
    return pl.concat_list(*turns).cast(pl.List(dtype))


def _sharegpt(speaker: str, content: pl.Expr) -> pl.Expr:
    return pl.struct(pl.lit(speaker).alias("from"), content.alias("value"))


RECORDS: dict[str, tuple[pl.Expr, ...]] = {
    "messages": (_turns(_turn("user", _USER), _turn("assistant", _ANSWER)).alias("messages"),),
    "prompt": (
        _turns(_turn("user", _USER)).alias("prompt"),
        _turns(_turn("assistant", _ANSWER)).alias("completion"),
    ),
    "sharegpt": (
        _turns(_sharegpt("human", _USER), _sharegpt("gpt", _ANSWER), dtype=_SHAREGPT_TURN).alias("conversations"),
    ),
    "alpaca": (pl.col("instruction"), pl.col("context").alias("input"), _ANSWER.alias("output")),
    "fields": (pl.col("context"), pl.col("instruction"), pl.col("response")),
}
"""The columns of each form's records, from those of tables.RAW_LONG_SFT."""
_ABOUT = ("sample_id", "source", "score", "rank")


def check_form(form: str) -> None:
    """Raise GateauError if there is no such form."""
    if form not in RECORDS:
        raise GateauError("export.format", f"there is no format {form!r}; {nearest_name(form, RECORDS)}")


def trainer_records(selected: pl.DataFrame, form: str) -> pl.DataFrame:
    """Return the records of chosen samples, best first, with `sample_id`, `source`, `score` and `rank`.

    Args:
        selected: tables.SELECTED_SUBSET.
        form: a key of RECORDS.
    """
    return selected.sort("rank").select(*RECORDS[form], *_ABOUT)
