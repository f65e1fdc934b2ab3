"""Make the assets `method_scores/<method>`: a method's score of every sample; no model is loaded."""

import polars as pl

from gateau_dagster.assets.steps.metadata import first_histogram
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.pipeline.state import State
from gateau_dagster.selection.combine import with_reasons

RAW = "raw_long_sft"


@makes_asset
def method_scores(step: Step) -> None:
    """Score the samples: shard by shard, or all at once with a method that needs the data set as a whole."""
    for done, output in enumerate(step.in_turn(), start=1):
        method = chosen_methods(step.state.config)[output.name]
        table, rejected = _scores(step.state, method, output.partition)
        output.write(table, rejected)
        output.metadata["without_score"] = table["score"].null_count()
        if output.partition is None:
            output.metadata |= first_histogram(table)
        else:
            step.progress(done, len(step.stale), "shards")


def _scores(state: State, method: Method, shard: str | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the scores of one shard or of all, and the samples without a score, with the reasons."""
    wanted = method.reads()
    found = {asset: state.read(asset, list(columns), shard) for asset, columns in wanted.items()}
    scores = method.scores(found)
    absent = state.read(RAW, ["sample_id"], shard).join(scores, on="sample_id", how="anti")
    reasons = [state.read_rejected(asset, shard) for asset in wanted if asset != RAW]
    return scores, with_reasons(absent, reasons).with_columns(
        pl.col("reason").fill_null(f"not in all of {', '.join(wanted)}")
    )
