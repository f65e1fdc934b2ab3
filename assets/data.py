"""Make the data: `raw_long_sft`, `document_split` and `short_chat_mix`."""

from typing import Any

import polars as pl

from gateau_dagster.assets.steps.metadata import chart, fields_metadata, source_chart
from gateau_dagster.assets.steps.step import Step, makes_asset
from gateau_dagster.data.document_split import TEXTS, Documents, OneDocumentError, group_sizes, split
from gateau_dagster.data.index import last_of_conversations, read_shards
from gateau_dagster.data.record_fields import FieldCounts
from gateau_dagster.data.rejects import check_rejected
from gateau_dagster.data.short_chat import short_chat_mix as read_short_chat
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.data_checks import too_few
from gateau_dagster.pipeline.selection_reads import reserved_documents


@makes_asset
def raw_long_sft(step: Step) -> None:
    """Read all changed shards in one pass over the input; write each as soon as the last of its samples is read."""
    state, config = step.state, step.state.config
    # `gateau run` has checked this already, but a Materialise in the UI makes no plan.
    checks_of(state).check_accepted()
    check_rejected(state.index.rejects, config.long_sft)
    stale = {int(str(output.partition)): output for output in step.stale}
    if not stale:
        return
    fields = fields_metadata(state.index.fields)
    frames = read_shards(config.located_long_sft, state.index, list(stale), step.progress)
    for number, table, rejected in frames:
        output = stale[number]
        output.write(table, rejected)
        output.metadata |= {"sources": source_chart(table["source"], "samples"), "input_fields": fields}
        step.record(output)


RAW = "raw_long_sft"


@makes_asset
def document_split(step: Step) -> None:
    """Group the samples by document, near-duplicates included, and reserve some documents."""
    for output in step.in_turn():
        state, documents = output.state, Documents()
        last = last_of_conversations(state.index) if state.config.long_sft.turns == "each" else {}
        reserved = reserved_documents(state.config)
        for done, shard in enumerate(state.shards, start=1):
            texts = state.store.read(RAW, shard, list(TEXTS))
            # By shard: near-duplicates are found among all samples, but only sketches and digests of their texts stay
            # in memory.
            documents.add(texts.filter(~pl.col("sample_id").is_in([*last])), state.index.instructions)
            output.progress(done, len(state.shards), "shards")
        documents.join(last)
        try:
            found = split(documents, share=reserved.share, least=reserved.similarity)
        except OneDocumentError as error:
            raise reserved.one_document(len(documents.of)) from error
        sources = state.read(RAW, ["sample_id", "source", "digest"])
        candidates = found.filter(~found["reserved"]).join(sources, on="sample_id")
        if warning := too_few(candidates, state.config.selection):
            step.log.warning(warning)
        output.write(found)
        output.metadata |= {
            "documents": found["document"].n_unique(),
            "near_duplicates": len(documents.sketches) - found["document"].n_unique(),
            "reserved_documents": found.filter("reserved")["document"].n_unique(),
            "reserved_samples": int(found["reserved"].sum()),
            **_groups(found),
        }


def _groups(found: pl.DataFrame) -> dict[str, Any]:
    """Return how many documents have several samples, how large these groups are, and their share of the samples."""
    from gateau_dagster.small_charts import shares

    sizes = group_sizes(found)
    labels = ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65 and more"]
    by_size = sizes.cut([2, 4, 8, 16, 32, 64], labels=labels[1:]).cast(pl.String)
    alone = found.height - int(sizes.sum())
    samples = {label: int(sizes.filter(by_size == label).sum()) for label in labels[1:]}
    drawn = [(f"in documents of {label}", count) for label, count in {"1": alone, **samples}.items() if count]
    return {
        "groups": sizes.len(),
        "largest_group": int(sizes.max() or 1),  # pyright: ignore[reportArgumentType]
        "share_of_samples_in_groups": int(sizes.sum()) / found.height,
        "samples_by_size_of_document": chart(shares(drawn, name="samples by size of their document")),
    }


@makes_asset
def short_chat_mix(step: Step) -> None:
    """Read, filter and sample the conversations."""
    for output in step.in_turn():
        chat = output.state.config.located_short_chat
        assert chat is not None, "the asset exists only with short_chat"
        counts: FieldCounts = {}
        output.write(*read_short_chat(chat, output.state.config.folder, output.progress, counts))
        output.metadata["input_fields"] = fields_metadata(counts)
