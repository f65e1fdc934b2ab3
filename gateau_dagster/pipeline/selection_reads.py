"""Find which tables ranking, selection and comparison read under a configuration."""

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.selection import WITH_QUOTAS
from gateau_dagster.data.document_split import SPLIT, Reserving
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import GATEAU, chosen_methods, sample_tables
from gateau_dagster.pipeline.feature import ReservedDocuments, features
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, cam_at_asset, further_lengths, perplexity_asset
from gateau_dagster.selection.combine import READ_COLUMNS
from gateau_dagster.selection.evidence import CAM_COLUMNS, LONG_COLUMNS
from gateau_dagster.selection.trim import SHORT_COLUMNS, TRIM_CAM_COLUMNS, TRIM_LONG_COLUMNS

PRESETS_TABLE, CHOSEN, EVIDENCE = "combined_scores", "selected_subset", "evidence"
EVIDENCE_READS = {
    CAM: CAM_COLUMNS,
    perplexity_asset(THETA_B): (*LONG_COLUMNS, "token_probability", "response_tokens"),
}
"""The columns that `evidence` is made of, by table."""
TRIM_READS = {
    CAM: TRIM_CAM_COLUMNS,
    perplexity_asset(THETA_B): TRIM_LONG_COLUMNS,
    perplexity_asset(THETA_A): SHORT_COLUMNS,
}
"""The columns that `training.trim` reads, by table."""

FORECAST_COLUMNS = ("sample_id", "dependency", *tables.schema(tables.FORECAST_SUMS))
"""The columns of `evidence` that the forecast reads, and rule `auto` with it."""


def reserved_documents(config: Config) -> ReservedDocuments:
    """Return which documents no selection takes, and what counts as one document."""
    found = [each for feature in features() if (each := feature.reserved_documents(config)) is not None]
    assert len(found) <= 1, "two features reserve documents"
    nothing = ReservedDocuments(share=None, similarity=Reserving().similarity, one_document=_none_reserved)
    return found[0] if found else nothing


def _none_reserved(samples: int) -> GateauError:
    raise AssertionError(f"no document of these {samples} samples is reserved")


def tables_read(config: Config) -> set[str]:
    """Return the tables that the selection, the compared methods and the study of segment lengths read.

    With `combined_scores`, the tables that it is made of are included.
    """
    reads = [selection_reads(config), *(method.reads() for method in chosen_methods(config).values())]
    found = {asset for each in reads for asset in each}
    return found | {PRESETS_TABLE, *READ_COLUMNS} if PRESETS_TABLE in found or further_lengths(config) else found


def scored_by(config: Config) -> list[tuple[str, str]]:
    """Return name and path of every model whose tables the selection or a compared method reads."""
    read = {table.model for table in sample_tables(config).values()}
    for asset in tables_read(config):
        family, _, model = asset.partition("/")
        read |= {"short", "long"} if asset == "cam" else {model} if family == "perplexity" else set()
    return [(name, model.path) for name, model in config.models.items() if name in read]


def wants_presets(config: Config) -> bool:
    """Return whether anything configured reads GATEAU's presets, so that the report shows them."""
    return PRESETS_TABLE in tables_read(config)


def has_evidence(config: Config) -> bool:
    """Return whether the table `evidence` is made: it is configured, and methods read what it is made of anyway."""
    selection = config.selection
    return (selection.evidence or bool(selection.left_out)) and EVIDENCE_READS.keys() <= tables_read(config)


def ranking_asset(config: Config) -> str:
    """Return the table by whose order the samples are chosen."""
    method = config.selection.method
    return PRESETS_TABLE if method == GATEAU else chosen_methods(config)[method].asset


def selection_reads(config: Config) -> dict[str, list[str]]:
    """Return the columns that the rule of selection reads, by asset; the texts of `raw_long_sft` are read as well."""
    selection, ranking = config.selection, ranking_asset(config)
    rank = ["rank"] if ranking == PRESETS_TABLE else []
    texts = ["digest"] if selection.duplicates == "one" else []
    found = {"raw_long_sft": ["sample_id", "source", *texts], ranking: ["sample_id", "score", *rank]}
    if selection.budget is not None or selection.rule in WITH_QUOTAS:  # the quota covers lengths of responses
        found["perplexity/long"] = ["sample_id", "context_tokens", "response_tokens"]
    if selection.left_out:
        found[EVIDENCE] = ["sample_id", "dependency"]
    if selection.encoder is not None:
        found[f"embedding/{selection.encoder}"] = ["sample_id", "embedding"]
    limited = selection.per_document is not None
    if limited or reserved_documents(config).share is not None:
        found[SPLIT] = ["sample_id", "reserved", *(["document"] if limited else [])]
    return found


def compared_methods(config: Config) -> list[Method]:
    """Return the methods with a table of scores: empty if GATEAU alone ranks, with its scores in `combined_scores`.

    With other segment lengths GATEAU has one too, because their comparison reads the tables of methods.
    """
    chosen = list(chosen_methods(config).values())
    return [] if [each.name for each in chosen] == [GATEAU] and not further_lengths(config) else chosen


def has_comparison(config: Config) -> bool:
    """Return whether there is something to compare: several methods, or GATEAU's ranking at several segment lengths."""
    return len(compared_methods(config)) > 1 or bool(further_lengths(config))


def comparison_reads(config: Config) -> list[str]:
    """Return the compared tables, the tables of GATEAU that are made anyway, and the selected subset."""
    scores = [each.asset for each in compared_methods(config)]
    further = [cam_at_asset(length) for length in further_lengths(config)]
    pair = ["perplexity/short"] if further else []
    beside = [asset for asset in ("perplexity/long", "cam", PRESETS_TABLE) if asset in tables_read(config)]
    split = [SPLIT] if reserved_documents(config).share is not None else []
    return ["raw_long_sft", *split, *pair, *beside, *further, *scores, CHOSEN]
