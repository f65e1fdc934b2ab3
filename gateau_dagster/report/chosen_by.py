"""What decided the selection, in phrases of the summary."""

from gateau_dagster.config import Config, SelectionConfig
from gateau_dagster.config.rules import DEFAULT_FRACTION
from gateau_dagster.incremental.selection_nodes import tables_read
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.report.text import number


def ranked_by(selection: SelectionConfig) -> str:
    """The method, and GATEAU's preset with its alpha, since the other methods have neither."""
    if selection.method != "gateau":
        return f"Method {selection.method}"
    return f"Method gateau, preset {selection.preset}, α = {selection.alphas[selection.preset]}"


def scored_by(config: Config) -> list[tuple[str, str]]:
    """Name and path of every model whose tables the selection or a compared method reads."""
    read = {table.model for table in sample_tables(config).values()}
    for asset in tables_read(config):
        family, _, model = asset.partition("/")
        read |= {"short", "long"} if asset == "cam" else {model} if family == "perplexity" else set()
    return [(name, model.path) for name, model in config.models.items() if name in read]


def chosen_by(selection: SelectionConfig) -> str:
    """The rule and how much it takes (config.rules.RuleConfig)."""
    tokens = f"{number(selection.budget or 0)} tokens"
    phrases = {
        "top": _amount(selection),
        "token_budget": f"a budget of {tokens}",
        "per_source": f"{_amount(selection)}, each source its share",
        "per_source_tokens": f"a budget of {tokens}, the same percentage of every source",
        "diverse": f"{_amount(selection)}, and the {selection.per_cluster} best of every cluster besides",
    }
    return phrases[selection.rule]


def _amount(selection: SelectionConfig) -> str:
    if selection.count is not None:
        return f"count ({number(selection.count)})"
    return f"fraction ({100 * (selection.fraction or DEFAULT_FRACTION):g} %)"
