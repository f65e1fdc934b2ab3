"""Declare the whole pipeline, each asset once, in the order of the data's flow.

Planner, Dagster's assets, their checks, the jobs and the page of assets are made from these declarations. To add an
asset, declare it here and write the function in `assets/` that its `maker` names. Features declare theirs in their
folders; three lines of DECLARED are the places of these assets.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

from gateau_dagster import tables
from gateau_dagster.comparison.compare import CODE_VERSION as COMPARISON_CODE_VERSION
from gateau_dagster.config import Config
from gateau_dagster.data.document_split import CODE_VERSION as SPLIT_CODE_VERSION
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.input_index import CODE_VERSION as INPUT_CODE_VERSION
from gateau_dagster.data.short_chat import CODE_VERSION as SHORT_CHAT_CODE_VERSION
from gateau_dagster.methods.registry import CODE_VERSION as METHODS_CODE_VERSION
from gateau_dagster.methods.registry import all_sample_tables
from gateau_dagster.pipeline.asset import (
    CHAT,
    FINITE_VALUES,
    FULL_COVERAGE,
    LONG,
    NORMALISATION,
    REJECTED_SHARE,
    SHARD,
    UNIQUE_IDS,
    Asset,
    Observed,
    method_key,
)
from gateau_dagster.pipeline.feature import features
from gateau_dagster.pipeline.recipes import (
    checkpoint,
    selected_subset,
    training_mix,
)
from gateau_dagster.pipeline.scoring_assets import embedding_asset, made_models, sample_table_asset
from gateau_dagster.pipeline.selection_reads import (
    CHOSEN,
    EVIDENCE,
    EVIDENCE_READS,
    PRESETS_TABLE,
    compared_methods,
    comparison_reads,
    has_comparison,
    has_evidence,
    reserved_documents,
)
from gateau_dagster.selection.combine import CODE_VERSION as SCORES_CODE_VERSION
from gateau_dagster.selection.combine import COLUMNS as SCORES_COLUMNS
from gateau_dagster.selection.combine import READ_COLUMNS
from gateau_dagster.selection.evidence import CODE_VERSION as EVIDENCE_CODE_VERSION
from gateau_dagster.selection.evidence import SUMS_CODE_VERSION

COMPARISON_FILE = "comparison.json"


def raw_long_sft(config: Config) -> Iterator[Asset]:
    """Declare the long samples to choose from."""
    del config
    yield Asset(
        key="raw_long_sft",
        maker="raw_long_sft",
        partitions=SHARD,
        group="data",
        kinds=("parquet", "polars"),
        summary="validated long samples; a sample's shard is a hash of its id",
        description="Long instruction samples (c, x; y), validated. The rejected table contains unusable records "
        "with the reason. A sample's shard is a hash of its id, so one edit affects one shard.",
        inputs=(LONG,),
        code_version=INPUT_CODE_VERSION,
        columns=(*tables.RAW_LONG_SFT, tables.CONVERSATION),
        checks=(UNIQUE_IDS, REJECTED_SHARE),
        goal=True,
    )


def document_split(config: Config) -> Iterator[Asset]:
    """Declare each sample's document, if documents are reserved for a benchmark or `selection.per_document` limits
    them. Both use the same table.
    """
    reserved = reserved_documents(config)
    if reserved.share is None and config.selection.per_document is None:
        return
    share = {} if reserved.share is None else {"reserved share": reserved.share}
    yield Asset(
        key=SPLIT,
        maker="document_split",
        group="data",
        kinds=("polars",),
        summary="each sample's document, and whether it is reserved for the held-out evaluation",
        description="Each sample's document (equal and nearly equal contexts are one, without system texts and "
        "definitions of tools), and whether it is reserved for the held-out evaluation. No selection takes a reserved "
        "document. Every selection is therefore tested on the same samples, and never on a training text. "
        "selection.per_document limits how many samples of a document are chosen. Loads no model.",
        reads={"raw_long_sft": "fingerprint"},
        settings={**share, "similarity of near-duplicates": reserved.similarity},
        observe=lambda observed: {"instructions": observed.instructions} if observed.instructions else {},
        code_version=SPLIT_CODE_VERSION,
        columns=tables.DOCUMENT_SPLIT,
        checks=(UNIQUE_IDS, FULL_COVERAGE),
        own_rejects=False,
    )


def short_chat_mix(config: Config) -> Iterator[Asset]:
    """Declare the short conversations, if the configuration has any."""
    chat = config.short_chat
    if chat is None:
        return
    yield Asset(
        key="short_chat_mix",
        maker="short_chat_mix",
        group="training",
        kinds=("parquet", "polars"),
        summary="ShareGPT / UltraChat conversations without empty responses",
        description="Short conversations (ShareGPT, UltraChat) without empty responses; `short_chat.fraction` is taken "
        "from the start of the data, as in the papers.",
        inputs=(CHAT,),
        observe=lambda observed: {
            "short_chat.fraction": chat.fraction,
            "short_chat files": observed.short_chat,
            **({"short_chat.ignore": sorted(chat.ignore)} if chat.ignore else {}),
        },
        code_version=SHORT_CHAT_CODE_VERSION,
        columns=tables.SHORT_CHAT_MIX,
        checks=(UNIQUE_IDS, REJECTED_SHARE),
        goal=True,
    )


def instruction_embeddings(config: Config) -> Iterator[Asset]:
    """Declare the embedding tables from which the samples of pre-experienced models are chosen."""
    found = all_sample_tables(config)
    for key in dict.fromkeys(embedding_asset(config, name) for name in config.pre_experienced_models):
        yield sample_table_asset(config, found[key])


def before_scores(config: Config) -> Iterator[Asset]:
    """Declare the assets of features that are made before the samples are scored."""
    for feature in features():
        yield from feature.declare_first(config)


def read_by_methods(config: Config) -> Iterator[Asset]:
    """Declare the assets of features that methods read."""
    for feature in features():
        yield from feature.declare_scores(config)


def sample_tables(config: Config) -> Iterator[Asset]:
    """Declare what models compute per sample: `perplexity/<model>`, `cam`, and the tables of methods."""
    first = {embedding_asset(config, name) for name in config.pre_experienced_models}
    for key, table in all_sample_tables(config).items():
        if key not in first:
            yield sample_table_asset(config, table)


def evidence(config: Config) -> Iterator[Asset]:
    """Declare what each response depends on, if `selection.evidence` or `selection.drop` needs it."""
    if not has_evidence(config):
        return
    yield Asset(
        key=EVIDENCE,
        maker="evidence",
        partitions=SHARD,
        group="selection",
        kinds=("polars",),
        summary="the segments of its context that each response depends on, and what kind of text that is",
        description="The segments of the context that raise the probability of a response token by 0.5 or more, with "
        "their offsets. Says whether the response depends on far text, near text or none. Loads no model.",
        reads=dict.fromkeys(("raw_long_sft", *EVIDENCE_READS), "fingerprint"),
        code_version=f"{EVIDENCE_CODE_VERSION}.{SUMS_CODE_VERSION}",
        columns=tables.EVIDENCE,
        checks=(UNIQUE_IDS, FULL_COVERAGE),
        own_rejects=False,
    )


def combined_scores(config: Config) -> Iterator[Asset]:
    """Declare GATEAU's ranking, if theta_A and theta_B are configured."""
    if not config.has_pair:
        return
    selection = config.selection
    # The value of a default alpha counts too: the columns of the other presets may use different values.
    default = f"{selection.alphas[selection.preset]:g} by default"
    alpha = default if selection.alpha is None else selection.alpha
    yield Asset(
        key=PRESETS_TABLE,
        maker="combined_scores",
        group="selection",
        kinds=("polars",),
        summary="the two terms, score and rank over the whole data set, under all three presets",
        description="Both terms, final score and rank of every sample (Eq. 2 and 6) over the whole data set. Waits for "
        "all shards; loads no model.",
        reads=dict.fromkeys(
            ("raw_long_sft", *READ_COLUMNS, *([EVIDENCE] if has_evidence(config) else [])), "fingerprint"
        ),
        settings={"selection.preset": selection.preset, "selection.alpha": alpha},
        code_version=SCORES_CODE_VERSION,
        columns=(*SCORES_COLUMNS, *(tables.DEPENDS if has_evidence(config) else ())),
        finite=("perplexity_short", "perplexity_long", "hmp", "score"),
        checks=(UNIQUE_IDS, FINITE_VALUES, FULL_COVERAGE, NORMALISATION),
        own_rejects=False,
    )


def method_scores(config: Config) -> Iterator[Asset]:
    """Declare the scores of every chosen method; they depend on its options and on what it reads."""
    for method in compared_methods(config):
        whole = "" if method.per_sample else " Over the whole data set: waits for all shards."
        yield Asset(
            key=method.asset,
            of="method",
            maker="method_scores",
            partitions=SHARD if method.per_sample else "",
            group="selection",
            kinds=("polars",),
            summary="scores of another configured method",
            description=f"Scores of the method `{method.name}` ({method.source}). High: {method.title}" + whole,
            reads=dict.fromkeys(("raw_long_sft", *method.reads()), "fingerprint"),
            inputs=(method_key(method.name),) if method.paths() else (),
            settings={"options": method.options.model_dump(mode="json")},
            observe=partial(_file_settings, method.name) if method.paths() else None,
            code_version=f"{METHODS_CODE_VERSION}.{method.version}",
            columns=tables.METHOD_SCORES,
            finite=("score",),
            checks=(UNIQUE_IDS, FINITE_VALUES, FULL_COVERAGE),
            own_rejects=False,
        )


def _file_settings(method: str, observed: Observed) -> dict[str, str]:
    return {"content of its file": observed.files[method]}


def comparison(config: Config) -> Iterator[Asset]:
    """Declare the comparison of methods, if there are several."""
    if not has_comparison(config):
        return
    selection = config.selection
    yield Asset(
        key="comparison",
        maker="comparison",
        group="selection",
        kinds=("polars",),
        summary="comparison of the configured methods",
        description="Compares the methods of selection.method and selection.compare: how far they agree, what each "
        "prefers, and what alpha and other segment lengths change. Counts as many samples as are "
        "chosen. Loads no model.",
        # The comparison reads only the number of chosen samples, whichever rule chose them.
        reads={**dict.fromkeys(comparison_reads(config), "fingerprint"), CHOSEN: "content"},
        settings={
            "selection.method": selection.method,
            "selection.ground_truth": selection.ground_truth,
        },
        code_version=COMPARISON_CODE_VERSION,
        file=COMPARISON_FILE,
        goal=True,
        own_rejects=False,
    )


def of_features(config: Config) -> Iterator[Asset]:
    """Declare the other assets of features that the report shows."""
    for feature in features():
        yield from feature.declare(config)


Declare: TypeAlias = Callable[[Config], Iterator[Asset]]
# In the order of the data's flow.
DECLARED: tuple[Declare, ...] = (
    raw_long_sft,
    document_split,
    short_chat_mix,
    instruction_embeddings,
    made_models,
    before_scores,
    sample_tables,
    evidence,
    combined_scores,
    read_by_methods,
    method_scores,
    selected_subset,
    comparison,
    training_mix,
    checkpoint,
    of_features,
)
