"""Whether samples share documents unawares, and a limit of them leaves enough to choose from: before any model runs."""

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
    """Return what a limit of samples by document leaves too few for, and which samples have the same texts."""
    rule = config.selection
    found = [] if rule.per_document == 1 else index.repeats(kept=rule.duplicates == "keep")
    return found if rule.per_document is None else [*found, *filter(None, [limit_leaves(config, store, whole())])]


def limit_leaves(config: Config, store: Store, whole: Plan) -> str:
    """As `too_few`, of documents that stand in the store, where a choice is to be made among them.

    The documents do not depend on the limit, so that one that changes finds them there. Empty where they are to be
    found first, which says it then. `whole`: what is out of date of all assets.
    """
    rule = config.selection
    if rule.per_document is None or whole.of(SPLIT) is not None or whole.of(CHOSEN) is None:
        return ""
    free = store.read(SPLIT, None).filter(~pl.col("reserved"))
    sources = store.read_all("raw_long_sft", shard_keys(config.long_sft.shards), ["sample_id", "source", "digest"])
    return too_few(free.join(sources, on="sample_id"), rule)


def too_few(candidates: pl.DataFrame, rule: RuleConfig) -> str:
    """What the samples that are left are too few for, before any model runs; empty where they are enough.

    `candidates`: tables.DOCUMENT_SPLIT without what is reserved, with `source` and `digest`. Raises GateauError as
    `check_data`.
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
