"""Whether `models` holds what the methods and the rule of selection read: known before any model runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateau_dagster.errors import GateauError
from gateau_dagster.methods.cam_at import further_lengths
from gateau_dagster.methods.registry import chosen_methods, sample_tables

if TYPE_CHECKING:
    from gateau_dagster.config import Config

# theta_A's window decides what `cam`, which theta_B makes, calls far.
_OF_THE_PAIR = {"combined_scores", "cam"}
COUNTING_RULES = ("token_budget", "per_source_tokens")


def check_models(config: Config) -> None:
    """Raises GateauError, with the place in the file, for the first model that is read and not configured."""
    for name, chosen in chosen_methods(config).items():
        for asset in chosen.reads(config):
            missing = [model for model in _models_of(asset) if model not in config.models]
            if not missing:
                continue
            if name == "gateau":
                raise GateauError(
                    f"models: lacks {' and '.join(missing)}: GATEAU compares a short and a long model (another "
                    "selection.method may need one of them, or none, as length does)"
                )
            raise GateauError(f"models: lacks {' and '.join(missing)}: method {name} reads {asset}")
    if further_lengths(config) and not config.has_pair:
        raise GateauError(
            "selection.segment_lengths: compares GATEAU's rankings, which need models.short and models.long"
        )
    for asset, table in sample_tables(config).items():
        if table.model not in config.models:
            raise GateauError(f"models: lacks {table.model}, which {asset} is computed with")
    if config.selection.rule in COUNTING_RULES and "long" not in config.models:
        raise GateauError(f"selection.rule: {config.selection.rule} counts the tokens of models.long, which is missing")


def _models_of(asset: str) -> tuple[str, ...]:
    """The models behind one of the scored tables; those of a method's own tables its table names."""
    if asset in _OF_THE_PAIR:
        return ("short", "long")
    family, _, model = asset.partition("/")
    return (model,) if family == "perplexity" else ()
