"""Find all methods by name: every class of this package's modules that is a Method with a name."""

from collections.abc import Iterator, Mapping
from functools import cache

from pydantic import ValidationError

from gateau_dagster import methods
from gateau_dagster.config import Config
from gateau_dagster.config.base import Section
from gateau_dagster.config.selection import PRESETS
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.cam_at import cam_at_tables, further_lengths
from gateau_dagster.methods.method import Method, check_model
from gateau_dagster.readable import nearest_name
from gateau_dagster.registry import classes_of, modules_of
from gateau_dagster.scoring.pair_tables import pair_tables
from gateau_dagster.scoring.sample_table import SampleTable

# The version of the code that all methods share; raise it when it changes a score. Each method also has its own.
CODE_VERSION = "1"
GATEAU = "gateau"
# Columns that are computed from attention, by asset.
_OF_ATTENTION = {
    "cam": frozenset({"segment_attention", "cas"}),
    "combined_scores": frozenset(f"{kind}_{preset}" for kind in ("cas", "score", "rank") for preset in PRESETS)
    - {"cas_robust", "score_robust", "rank_robust"},
}


@cache
def all_methods() -> Mapping[str, type[Method]]:
    """Return every method of the project by its name."""
    found = {method.name: method for module in modules_of(methods) for method in classes_of(module, Method)}
    return dict(sorted(found.items(), key=lambda item: (item[0] != GATEAU, item[0])))


def chosen_methods(config: Config) -> dict[str, Method]:
    """Return `selection.method`, `selection.compare` and `variants.methods` by name, each name once.

    Raises:
        GateauError: a name or an option that does not exist, or a configuration that lacks what a method needs.
    """
    selection = config.selection
    found: dict[str, Method] = {}
    variants = config.variants.methods if config.variants is not None else None
    named = {"selection.method": [selection.method], "selection.compare": selection.compare}
    for place, names in {**named, "variants.methods": variants or []}.items():
        for name in names:
            if name not in found:
                found[name] = _known(name, place)(config, _options(config, name))
                found[name].check()
    for name in selection.options:
        _known(name, "selection.options")
        _options(config, name)
    return found


def reads_attention(config: Config) -> bool:
    """Return whether a method or the study of segment lengths reads attention from `cam`; raise as chosen_methods
    does."""
    if further_lengths(config) and config.selection.preset != "robust":
        return True
    reads = (method.reads().items() for method in chosen_methods(config).values())
    return any(_OF_ATTENTION.get(asset, frozenset()) & {*columns} for each in reads for asset, columns in each)


def watched_models(config: Config) -> set[str]:
    """Return the models whose attention a method's own table needs; raise as sample_tables does."""
    return {table.model for table in sample_tables(config).values() if table.needs_attention}


def sample_tables(config: Config) -> dict[str, SampleTable]:
    """Return the tables that models compute for methods, the rule, further segment lengths and trained models, by
    asset.

    Raises:
        GateauError: as `chosen_methods` and `cam_at_tables`, or if two methods need a table with different settings.
    """
    found: dict[str, SampleTable] = {}
    for table in _wanted_tables(config):
        other = found.setdefault(table.asset, table)
        if other.settings != table.settings:
            raise GateauError(
                f"selection.options: two methods want {table.asset} with different settings: "
                f"{dict(other.settings)} and {dict(table.settings)}"
            )
    return found


def all_sample_tables(config: Config) -> dict[str, SampleTable]:
    """Return all tables that models compute per sample: the pair's tables and `sample_tables`; raise as these do."""
    pair = pair_tables(config, attention_read=reads_attention(config))
    return {table.asset: table for table in pair} | sample_tables(config)


def _wanted_tables(config: Config) -> Iterator[SampleTable]:
    for method in chosen_methods(config).values():
        yield from method.tables()
    if config.selection.rule == "diverse":
        from gateau_dagster.methods.car import embedding_table

        assert config.selection.encoder is not None
        check_model(config, config.selection.encoder, "embedding", place="selection.encoder")
        yield embedding_table(config.selection.encoder)
    yield from cam_at_tables(config)
    if config.pre_experienced_models:
        from gateau_dagster.methods.pre_experience import instruction_embedding_table

        for name in config.pre_experienced_models:
            yield instruction_embedding_table(config.origin(name))


def _known(name: str, place: str) -> type[Method]:
    if name not in all_methods():
        raise GateauError(f"{place}: there is no method {name!r}; {nearest_name(name, all_methods())}")
    return all_methods()[name]


def _options(config: Config, name: str) -> Section:
    section, given = all_methods()[name].options_class(), config.selection.options.get(name, {})
    try:
        return section.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(["selection.options", name, *map(str, first["loc"])])
        what = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            what = f"unknown key; {nearest_name(str(first['loc'][-1]), section.model_fields)}"
        raise GateauError(f"{place}: {what}") from error
