"""Make the asset `raw_long_sft`: the validated long samples."""

from gateau_dagster.assets.steps.metadata import fields_metadata, source_chart
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.data.ingest import read_shards
from gateau_dagster.data.rejects import check_rejected


@makes_asset
def raw_long_sft(step: Step) -> None:
    """Read all changed shards in one pass over the input; write each as soon as the last of its samples is read."""
    state, config = step.state, step.state.config
    # `gateau run` has checked this already, but a Materialise in the UI makes no plan.
    check_rejected(state.index.rejects, config.long_sft)
    stale = {int(str(output.partition)): output for output in step.stale}
    if not stale:
        return
    fields = fields_metadata(state.index.fields)
    frames = read_shards(config.located_long_sft, config.folder, state.index, list(stale), step.progress)
    for number, table, rejected in frames:
        output = stale[number]
        output.write(table, rejected)
        output.metadata |= {"sources": source_chart(table["source"], "samples"), "input_fields": fields}
        step.record(output)
