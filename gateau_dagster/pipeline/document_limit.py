"""Check, before any model runs, whether samples share documents and whether `selection.per_document` leaves enough."""

from collections.abc import Callable

import polars as pl

from gateau_dagster.config import Config
from gateau_dagster.config.selection import RuleConfig
from gateau_dagster.data.index import InputIndex
from gateau_dagster.data.sample import shard_keys
from gateau_dagster.evaluation.document_split import SPLIT
from gateau_dagster.pipeline.plan import Plan
from gateau_dagster.pipeline.selection_reads import CHOSEN
from gateau_dagster.selection.per_document import countable_samples, most_by_source, most_of_all
from gateau_dagster.selection.rules import check_data
from gateau_dagster.storage import Store


def document_warnings(config: Config, store: Store, whole: Callable[[], Plan], index: InputIndex) -> list[str]:
    """Return warnings: the limit per document leaves too few samples, or samples have the same texts."""
    rule = config.selection
    found = [] if rule.per_document == 1 else index.repeats(kept=rule.duplicates == "keep")
    return found if rule.per_document is None else [*found, *filter(None, [limit_leaves(config, store, whole())])]


def limit_leaves(config: Config, store: Store, whole: Plan) -> str:
    """Return `too_few` for the documents in the store, if a selection is to be made from them; else an empty text.

    The documents do not depend on the limit, so they stay valid when it changes. If they are still to be computed, that
    step gives the warning. `whole`: the plan of all assets.
    """
    rule = config.selection
    if rule.per_document is None or whole.of(SPLIT) is not None or whole.of(CHOSEN) is None:
        return ""
    free = store.read(SPLIT, None).filter(~pl.col("reserved"))
    sources = store.read_all("raw_long_sft", shard_keys(config.long_sft.shards), ["sample_id", "source", "digest"])
    return too_few(free.join(sources, on="sample_id"), rule)


def too_few(candidates: pl.DataFrame, rule: RuleConfig) -> str:
    """Return what the remaining samples are too few for, before any model runs; empty if they are enough.

    `candidates`: tables.DOCUMENT_SPLIT without reserved samples, with `source` and `digest`. Raises GateauError as
    `check_data` does.
    """
    most, (sources, counted) = rule.per_document, countable_samples(candidates, rule)
    if most is None or rule.budget is not None:
        check_data(sources, counted)
        return ""
    once = rule.duplicates == "one"
    texts = candidates.unique("digest") if once else candidates
    wanted, left = rule.chosen(candidates.height), most_of_all(texts, most)
    of_sources = candidates.unique(["source", "digest"]) if once else candidates
    check_data(sources, rule.taking(count=min(wanted, left)), left=most_by_source(of_sources, most))
    return f"selection.per_document: {most} leaves {left} samples, and {wanted} are asked for" if left < wanted else ""
