"""Scores, methods, their comparison and the choice, as the planner sees them; none of them loads a model."""

from gateau_dagster.config import Config
from gateau_dagster.incremental.code_versions import CODE_VERSIONS
from gateau_dagster.incremental.node import Node
from gateau_dagster.methods.embedding import embedding_table
from gateau_dagster.methods.registry import GATEAU, ChosenMethod, chosen_methods


def selection_nodes(config: Config) -> list[Node]:
    """From `combined_scores` to `selected_subset`."""
    selection = config.selection
    tables = ["raw_long_sft", "perplexity/short", "perplexity/long", "cam"]
    return [
        Node(
            asset="combined_scores",
            partitioned=False,
            upstream=dict.fromkeys(tables, "fingerprint"),
            settings={"selection.preset": selection.preset, "selection.alpha": _alpha(config)},
            code_version=CODE_VERSIONS["combined_scores"],
        ),
        *(_method_scores(config, each) for each in compared_methods(config)),
        *_comparison(config),
        Node(
            asset="selected_subset",
            partitioned=False,
            upstream=dict.fromkeys(selection_reads(config), "fingerprint"),
            settings={"selection.method": selection.method, "selection.rule": selection.parameters},
            code_version=CODE_VERSIONS["selected_subset"],
        ),
    ]


def _alpha(config: Config) -> float | str:
    """With its value by default, too: the other presets' own, whose columns stand beside, may be different ones."""
    selection = config.selection
    default = f"{selection.alphas[selection.preset]:g} by default"
    return default if selection.alpha is None else selection.alpha


def _method_scores(config: Config, chosen: ChosenMethod) -> Node:
    """A method's scores; its code's version and its options decide them, and what it reads."""
    return Node(
        asset=chosen.asset,
        partitioned=chosen.method.per_sample,
        upstream=dict.fromkeys(("raw_long_sft", *chosen.reads(config)), "fingerprint"),
        settings={"options": chosen.options.model_dump(mode="json")},
        code_version=f"{CODE_VERSIONS['method_scores']}.{chosen.method.code_version}",
    )


def ranking_asset(config: Config) -> str:
    """The table whose order the samples are chosen by."""
    method = config.selection.method
    return "combined_scores" if method == GATEAU else chosen_methods(config)[method].asset


def selection_reads(config: Config) -> dict[str, list[str]]:
    """The columns that the rule of selection reads, by asset; the texts of `raw_long_sft` are read besides."""
    rule, ranking = config.selection.rule, ranking_asset(config)
    rank = ["rank"] if ranking == "combined_scores" else []
    found = {"raw_long_sft": ["sample_id", "source"], ranking: ["sample_id", "score", *rank]}
    if rule in {"token_budget", "per_source_tokens"}:
        found["perplexity/long"] = ["sample_id", "context_tokens", "response_tokens"]
    if rule == "diverse":
        assert config.selection.encoder is not None
        found[embedding_table(config.selection.encoder).asset] = ["sample_id", "embedding"]
    return found


def compared_methods(config: Config) -> list[ChosenMethod]:
    """The methods with a table of scores: none where GATEAU alone ranks, whose scores are `combined_scores`."""
    chosen = list(chosen_methods(config).values())
    return [] if [each.name for each in chosen] == [GATEAU] else chosen


def _comparison(config: Config) -> list[Node]:
    """The methods side by side, where there are several."""
    compared = compared_methods(config)
    if len(compared) < 2:
        return []
    selection = config.selection
    tables = ["raw_long_sft", "perplexity/long", "cam", "combined_scores", *(each.asset for each in compared)]
    return [
        Node(
            asset="comparison",
            partitioned=False,
            upstream=dict.fromkeys(tables, "fingerprint"),
            settings={
                "selection.method": selection.method,
                "selection.rule": selection.parameters,
                "selection.ground_truth": selection.ground_truth,
            },
            code_version=CODE_VERSIONS["comparison"],
        )
    ]
