"""Find all methods by name: every class of this package's modules, of features' modules `method` and of plug-ins."""

import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

import polars as pl

from gateau_dagster import methods
from gateau_dagster.config import Config
from gateau_dagster.config.base import validated
from gateau_dagster.config.selection import PRESETS
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.errors import GateauError
from gateau_dagster.methods.method import RETURNED, Method, check_model
from gateau_dagster.readable import nearest_name, plural
from gateau_dagster.registry import (
    classes_of,
    feature_modules,
    full_version,
    guarded,
    is_own,
    modules_of,
    possible_name,
    shown_value,
    with_installed,
    with_plugins,
)
from gateau_dagster.scoring.pair_tables import cam_at_tables, further_lengths, pair_tables
from gateau_dagster.scoring.sample_table import Row, Running, SampleTable, ScoreRows
from gateau_dagster.storage.stamp import fingerprint
from gateau_dagster.tables import schema

# The version of the code that all methods share; raise it when it changes a score. Each method also has its own.
CODE_VERSION = "1"
GATEAU = "gateau"
ENTRY_POINTS = "gateau_dagster.methods"
"""The entry-point group in which installed packages name their methods."""
_OF_CAS = frozenset(f"{kind}_{preset}" for kind in ("cas", "score", "rank") for preset in PRESETS) - {
    "cas_robust",
    "score_robust",
    "rank_robust",
}
_Columns = Mapping[str, frozenset[str]]
# Columns that are computed from attention, and those that take every segment, by asset.
_OF_ATTENTION: _Columns = {"cam": frozenset({"segment_attention", "cas"}), "combined_scores": _OF_CAS}
_OF_EVERY_SEGMENT: _Columns = {
    "cam": frozenset({"segment_perplexity", "segment_gain", "cas"}),
    "combined_scores": _OF_CAS,
}


@cache
def all_methods() -> Mapping[str, type[Method]]:
    """Return the methods of the project, its features and of installed packages, by name.

    Raises:
        GateauError: as `with_installed`.
    """
    modules = (*modules_of(methods), *feature_modules("method"))
    own = {method.name: method for module in modules for method in classes_of(module, Method)}
    return _sorted(with_installed(own, ENTRY_POINTS, Method, returned=RETURNED))


def known_methods(config: Config) -> Mapping[str, type[Method]]:
    """Return `all_methods` and those of `selection.plugins`.

    Raises:
        GateauError: as `with_plugins`.
    """
    files = config.plugin_files
    return _sorted(with_plugins(all_methods(), files, Method, returned=RETURNED)) if files else all_methods()


def _sorted(found: Mapping[str, type[Method]]) -> Mapping[str, type[Method]]:
    return dict(sorted(found.items(), key=lambda item: (item[0] != GATEAU, item[0])))


def chosen_methods(config: Config) -> dict[str, Method]:
    """Return the methods of `selection.method`, `selection.compare` and `variants` by name, each name once.

    Raises:
        GateauError: a name or an option that does not exist, or a configuration that lacks what a method needs, or
            leaves out segments that a method or the study of segment lengths reads.
    """
    selection, known = config.selection, known_methods(config)
    variants = [] if config.variants is None else config.variants.compared(selection.method)
    named = {"selection.method": [selection.method], "selection.compare": selection.compare}
    found: dict[str, Method] = {}
    further = [] if config.variants is None else config.variants.further_methods
    for place, names in {**named, "variants.methods": variants, "variants.also": further}.items():
        for name in names:
            # Bound and checked for all places before anything runs. A method of `selection.compare` that lacks a model
            # would otherwise fail after the first one's tables are made.
            if name not in found:
                found[name] = _bound(config, known, name, place)
                found[name].check()
    # Options of a method that nobody names are validated, too: a misspelt key would wait there for its first use.
    for name in selection.options:
        _bound(config, known, name, "selection.options")
    every = _reader(config, found, _OF_EVERY_SEGMENT) if config.scoring.segments == "screened" else ""
    if every:
        raise GateauError(
            "scoring.segments",
            f"scoring.segments: screened leaves segments out, but {every}, which takes all of them: set "
            "scoring.segments: all, or use only methods that read the best segments, as gateau with preset robust",
        )
    return found


def _bound(config: Config, known: Mapping[str, type[Method]], name: str, place: str) -> Method:
    if name not in known:
        raise GateauError("methods.unknown", f"{place}: there is no method {name!r}; {nearest_name(name, known)}")
    given, method = config.selection.options.get(name, {}), known[name]
    options = validated(f"selection.options.{name}", method.options_class, given)
    return method(config, options)


def reads_attention(config: Config) -> bool:
    """Return whether a method or the study of segment lengths reads attention from `cam`; raise as chosen_methods
    does.
    """
    return bool(_reader(config, chosen_methods(config), _OF_ATTENTION))


def _reader(config: Config, methods: Mapping[str, Method], wanted: _Columns) -> str:
    """Return who reads one of these columns, as part of a sentence; empty if nobody does."""
    if further_lengths(config) and config.selection.preset != "robust":
        return f"selection.segment_lengths with preset {config.selection.preset} reads CAS"
    for name, method in methods.items():
        for asset, columns in method.reads().items():
            if found := wanted.get(asset, frozenset()) & {*columns}:
                return f"method {name} reads {asset}.{min(found)}"
    return ""


def watched_models(config: Config) -> set[str]:
    """Return the models whose attention a method's own table needs; raise as sample_tables does."""
    return {table.model for table in sample_tables(config).values() if table.needs_attention}


def sample_tables(config: Config) -> dict[str, SampleTable]:
    """Return the tables that models compute for methods, the rule, other segment lengths and trained models, by
    asset.

    Raises:
        GateauError: as `chosen_methods` and `cam_at_tables`, or if two methods need a table with different settings.
    """
    found: dict[str, SampleTable] = {}
    for table in _wanted_tables(config):
        other = found.setdefault(table.asset, table)
        if other.settings != table.settings:
            raise GateauError(
                "methods.same_table",
                f"selection.options: two methods need {table.asset} with different settings; give both the same: "
                f"{dict(other.settings)} and {dict(table.settings)}",
            )
    return found


def all_sample_tables(config: Config) -> dict[str, SampleTable]:
    """Return all tables that models compute per sample: the pair's tables and `sample_tables`.

    Raises:
        GateauError: as `sample_tables`, or if a plug-in's table has the name of one of the pair's.
    """
    pair = {table.asset: table for table in pair_tables(config, attention_read=reads_attention(config))}
    found = sample_tables(config)
    if both := sorted(pair.keys() & found.keys()):
        raise GateauError(
            "plugins.name", f"selection.plugins: two tables are named {both[0]}: give the plug-in's another name"
        )
    return pair | found


def _wanted_tables(config: Config) -> Iterator[SampleTable]:
    for method in chosen_methods(config).values():
        for table in method.tables():
            function: Any = table.score
            while isinstance(function, partial):
                function = function.func
            module: str = function.__module__
            checked = table if is_own(module) else _checked(table, f"method {method.name}", module)
            yield replace(checked, code_version=full_version(table.code_version, module))
    if config.selection.encoder is not None:
        from gateau_dagster.methods.car import embedding_table

        check_model(config, config.selection.encoder, "embedding", place="selection.encoder")
        yield embedding_table(config.selection.encoder)
    yield from cam_at_tables(config)
    if config.pre_experienced_models:
        from gateau_dagster.methods.pre_experience import instruction_embedding_table

        for name in config.pre_experienced_models:
            yield instruction_embedding_table(config.origin(name))


def _checked(table: SampleTable, what: str, module: str) -> SampleTable:
    """Return a table of a plug-in such that its name, its functions and their rows are checked.

    Raises:
        GateauError: the table has a name that no table can have, or settings without a fingerprint.
    """
    file = getattr(sys.modules[module], "__file__", None) or module
    check_table_name(table, f"{file}: {what}")
    try:
        fingerprint(dict(table.settings))
    except (TypeError, ValueError) as error:
        raise GateauError(
            "plugins.result", f"{file}: {what}: the settings of {table.asset} are no JSON ({error}): correct the file"
        ) from error
    place = f"{what}: the function of {table.asset}"
    effort = None if table.effort is None else guarded(table.effort, f"{what}: the effort of {table.asset}")
    score = partial(_rows, guarded(table.score, place), table, f"{file}: {place}")
    return replace(table, score=score, effort=effort)


def check_table_name(table: SampleTable, place: str) -> None:
    """Raise GateauError unless each part of a table's name can be a part of a path."""
    try:
        for part in table.asset.split("/"):
            possible_name(part)
    except (AttributeError, GateauError) as error:
        raise GateauError(
            "plugins.name", f"{place}: the table {shown_value(table.asset)} {error}: such as words/long"
        ) from error


def _rows(
    function: ScoreRows, table: SampleTable, place: str, loaded: Any, samples: Iterable[Sample], running: Running
) -> Iterator[Row | Reject]:
    """Yield the rows of a plug-in's table.

    Raises:
        GateauError: there is not one row or reject for each sample, in order, with the table's columns.
    """

    def wrong(what: str) -> GateauError:
        return GateauError("plugins.result", f"{place} {what}: correct the file. Earlier rows are kept")

    # A function may read samples ahead of its rows, so the two are matched by their order and not one by one.
    waiting: deque[Sample] = deque()

    def noted() -> Iterator[Sample]:
        for sample in samples:
            waiting.append(sample)
            yield sample

    given: Any = function(loaded, noted(), running)
    if not isinstance(given, Iterable):
        raise wrong(f"returned {shown_value(given)}, not rows")
    for row in given:
        if not waiting:
            raise wrong("yielded more rows than samples")
        if problem := _wrong_row(row, table, waiting.popleft()):
            raise wrong(f"yielded {problem}")
        yield row
    if missing := len(waiting) + sum(1 for _ in samples):
        raise wrong(f"yielded no row for {plural(missing, 'sample')}")


def _wrong_row(row: Any, table: SampleTable, sample: Sample) -> str:
    """Return the fault in the row of a sample; empty if there is none."""
    if isinstance(row, Reject):
        odd = row.sample_id != sample.sample_id or not isinstance(row.reason, str)
        return f"{shown_value(row)} for sample {sample.sample_id}" if odd else ""
    names = [column.name for column in table.columns]
    if not isinstance(row, Mapping) or {*row} != {*names}:
        return f"{shown_value(row)}, not a Reject or a row with {', '.join(names)}"
    if (row["sample_id"], row["digest"]) != (sample.sample_id, sample.digest):
        return f"a row of {shown_value(row['sample_id'])} where that of sample {sample.sample_id} is due"
    for name in table.finite:
        if not isinstance(row[name], int | float) or not math.isfinite(row[name]):
            return f"{name} {shown_value(row[name])} for sample {sample.sample_id}, which must be a finite number"
    try:
        pl.DataFrame([dict(row)], schema=schema(table.columns), orient="row")
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        return f"a row of sample {sample.sample_id} with a value of another type ({str(error).splitlines()[0]})"
    return ""
