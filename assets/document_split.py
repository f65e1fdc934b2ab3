"""Asset `document_split`: the samples that no selection takes."""

import dagster as dg

from assets.steps.definition import makes_asset
from assets.steps.unpartitioned_step import unpartitioned_step
from gateau_dagster.evaluation.document_split import TEXTS, Documents, split
from gateau_dagster.evaluation.registry import reserving
from gateau_dagster.selection.rules import check_data
from resources.configuration import ConfigurationResource

RAW = "raw_long_sft"


@makes_asset
def document_split(context: dg.AssetExecutionContext, configuration: ConfigurationResource) -> dg.MaterializeResult:
    """Documents, near-duplicates among them, and which of them are reserved."""
    with unpartitioned_step(context, configuration) as step:
        if step.is_stale:
            state, documents = step.state, Documents()
            options = reserving(state.config)
            assert options is not None
            for done, shard in enumerate(state.shards, start=1):
                documents.add(state.store.read(RAW, shard, list(TEXTS)))
                step.progress(done, len(state.shards), "shards")
            found = split(documents, share=options.share, least=options.similarity)
            candidates = found.filter(~found["reserved"]).join(state.read(RAW, ["sample_id", "source"]), on="sample_id")
            # Before any model runs: what is left may be too little for the rule.
            check_data(dict(candidates["source"].value_counts().iter_rows()), state.config.selection)
            step.write(found)
            step.metadata |= {
                "documents": found["document"].n_unique(),
                "near_duplicates": len(documents.sketches) - found["document"].n_unique(),
                "reserved_documents": found.filter("reserved")["document"].n_unique(),
                "reserved_samples": int(found["reserved"].sum()),
            }
    return step.result
