"""Score a labelled data set with every method, from tables that its models compute once."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from common import say
from pydantic import ValidationError

from gateau_dagster import tables
from gateau_dagster.config import Config
from gateau_dagster.config.selection import PRESETS
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.features.demo.config import RECIPE_VERSION
from gateau_dagster.methods.method import Method
from gateau_dagster.methods.registry import all_methods, chosen_methods, sample_tables
from gateau_dagster.models.loaded import ForwardWork, LoadedModel
from gateau_dagster.models.loading import effective_max_length, load_model
from gateau_dagster.models.model_facts import visible_tokens
from gateau_dagster.scoring.pair_tables import pair_tables
from gateau_dagster.scoring.sample_table import RequestedRow, Running, SampleTable
from gateau_dagster.selection.combine import combine
from gateau_dagster.storage.local import replace_local

REFERENCE = "gateau[robust]"
# The papers' parameters are for contexts of 32k tokens, these have some 1,000: one variant each is scaled to them. The
# pairs are 15 % of those of some 30 segments, as the paper's are of those of 256; the window is theta_B's.
SCALED: dict[str, dict[str, Any]] = {
    "ladm": {"span_length": 16},
    "delta_perplexity": {"segment_length": 32, "pairs": 65, "window": 2048},
}
# Models of a case's configuration that these methods take in place of the pair.
OPTIONS: dict[str, dict[str, Any]] = {
    "gateau_unextended": {"short": "unextended"},
    "hmg_non_homologous": {"short": "stranger"},
    "gateau_in_context": {"short": "shown_short", "long": "shown_long"},
}
PAIR_TABLES = ("perplexity/short", "perplexity/long", "cam")
PRESET_METHODS = ("gateau", "hmg", "cam")  # shown under every preset
Record = dict[str, str]
_LOADED: dict[str, LoadedModel] = {}  # by configuration: many data sets are scored by few models


@dataclass(frozen=True, kw_only=True)
class LabelledCase:
    """A labelled data set and the models that score it. The fields decide the tables."""

    folder: Path
    device: str = "cpu"
    segment_length: int = 128

    @property
    def name(self) -> str:
        """The name in progress messages."""
        raise NotImplementedError

    def records(self) -> list[Record]:
        """Return the data set: id, source (the kind), context, instruction and response."""
        raise NotImplementedError

    def models(self) -> dict[str, Any]:
        """Return the section `models`."""
        raise NotImplementedError

    def scoring(self) -> dict[str, Any]:
        """Return the keys of the section `scoring` beside device, dtype and segment length."""
        raise NotImplementedError

    def config(self, method: str = "gateau", options: Mapping[str, Any] | None = None) -> Config:
        """Return the configuration under which a method with these options scores."""
        selection: dict[str, Any] = {"method": method}
        if options:
            selection |= {"options": {method: dict(options)}}
            selection |= {name: value for name, value in options.items() if name == "preset"}
        scoring = {"dtype": "float32", "device": self.device, "segment_length": self.segment_length} | self.scoring()
        return Config.model_validate(
            {"long_sft": {"path": "none.jsonl"}, "models": self.models(), "scoring": scoring, "selection": selection}
        )


class Tables(Mapping[str, pl.DataFrame]):
    """The tables of a case by asset name: read from disk, else computed and written, when first asked for.

    A table's file is named by everything that decides its rows.
    """

    def __init__(self, case: LabelledCase) -> None:
        self.case = case
        self.records = case.records()
        self.samples = [
            Sample.of_row({"sample_id" if name == "id" else name: text for name, text in each.items()})
            for each in self.records
        ]
        self._known: dict[str, pl.DataFrame] = {}
        self._made = {table.asset: table for table in pair_tables(case.config())}
        self._key = _hash([asdict(case) | {"folder": ""}, self.records, RECIPE_VERSION])

    def add(self, made: Mapping[str, SampleTable]) -> None:
        """Add tables that models compute; one with other settings replaces the table of that name."""
        for asset, table in made.items():
            if asset in self._made and self._made[asset].settings != table.settings:
                self._known.pop(asset, None)
        self._made |= made

    def __getitem__(self, asset: str) -> pl.DataFrame:
        if asset not in self._known:
            self._known[asset] = self._find(asset)
        return self._known[asset]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def _find(self, asset: str) -> pl.DataFrame:
        if asset == "raw_long_sft":
            rows = [asdict(sample) | {"digest": sample.digest} for sample in self.samples]
            return pl.DataFrame(rows, schema=tables.schema(tables.RAW_LONG_SFT)).sort("sample_id")
        if asset == "combined_scores":
            parts = (self["perplexity/short"], self["perplexity/long"], self["cam"])
            return combine(*parts, preset="robust", alpha=None)
        table = self._made[asset]
        # One pass over a sample can serve several tables.
        step = table.asset if table.shared is None else table.shared.name
        made = [each for each in self._made.values() if step == (each.shared.name if each.shared else each.asset)]
        missing = [each for each in made if not self._file(each).exists()]
        if table in missing:
            say(f"  {self.case.name}: {', '.join(each.asset for each in missing)} of {len(self.samples)} samples")
            for each, rows in zip(missing, self._scored(missing), strict=True):
                frame = pl.DataFrame(rows, schema=tables.schema(tuple(each.columns))).sort("sample_id")
                replace_local(self._file(each), frame.write_parquet)
        return pl.read_parquet(self._file(table))

    def _file(self, table: SampleTable) -> Path:
        # The short model's sight decides which segments cam calls far.
        seen_by = [self._sight(table.model)] + ([self._sight("short")] if table.needs_visible_window else [])
        names = [column.name for column in table.columns]
        key = _hash([self._key, table.asset, *seen_by, names, dict(table.settings), table.code_version])
        return self.case.folder / "tables" / f"{table.asset.replace('/', '-')}-{key}.parquet"

    def _sight(self, model: str) -> dict[str, Any]:
        """Return the keys of a model's section that change a row."""
        return {**self.case.config().models[model].model_dump(exclude_defaults=True), "path": model}

    def _scored(self, made: Sequence[SampleTable]) -> list[list[dict[str, Any]]]:
        """Return the rows of tables that one pass computes."""
        config, name = self.case.config(), made[0].model
        place = {"dtype": config.scoring.dtype, "device": config.scoring.device, "folder": Path()}
        key = _hash([config.models[name].model_dump(), place])
        if key not in _LOADED:
            _LOADED[key] = load_model(config.models[name], **place)
        loaded = _LOADED[key]
        length = effective_max_length(loaded, config.models[name], config.scoring)
        running = {
            each.asset: Running(
                max_length=length,
                scoring=config.scoring,
                work=ForwardWork(),
                visible_tokens=visible_tokens(config) if each.needs_visible_window else None,
            )
            for each in made
        }
        if made[0].shared is None:
            (table,) = made
            outcomes = ({table.asset: row} for row in table.score(loaded, self.samples, running[table.asset]))
        else:
            requests = (RequestedRow(sample=sample, assets=frozenset(running)) for sample in self.samples)
            outcomes = made[0].shared.score(loaded, requests, running)
        found: dict[str, list[dict[str, Any]]] = {asset: [] for asset in running}
        for asset, row in (pair for each in outcomes for pair in each.items()):
            if not isinstance(row, Reject):
                found[asset].append(dict(row))
            elif row.may_pass:  # a full GPU: without the sample it would be another set
                raise RuntimeError(f"{self.case.name}: {row.sample_id} was not scored: {row.reason}")
        return list(found.values())


class JoinedTables(Tables):
    """The tables of several data sets as those of one: a method that normalises sees all samples."""

    def __init__(self, parts: Sequence[Tables]) -> None:
        super().__init__(parts[0].case)
        self._parts = parts
        self.records = [record for part in parts for record in part.records]
        self.samples = [sample for part in parts for sample in part.samples]

    def _find(self, asset: str) -> pl.DataFrame:
        if asset in ("raw_long_sft", "combined_scores"):
            return super()._find(asset)
        return pl.concat([part[asset] for part in self._parts]).sort("sample_id")


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def candidates() -> list[tuple[str, str, dict[str, Any]]]:
    """Return label, method and options of everything in the registry; GATEAU's methods under every preset."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for name in all_methods():
        if name in PRESET_METHODS:
            found += [(f"{name}[{preset}]", name, {"preset": preset}) for preset in PRESETS]
        else:
            found.append((name, name, OPTIONS.get(name, {})))
    found += [(f"{name}[scaled]", name, options) for name, options in SCALED.items() if name in all_methods()]
    return found


def asked(case: LabelledCase, method: str, options: Mapping[str, Any]) -> Method:
    """Return the method under the case's configuration. Raises ValueError where that lacks what the method needs."""
    return chosen_methods(case.config(method, options))[method]


def method_scores(known: Tables, method: Method) -> np.ndarray:
    """Return the method's score of each sample, in the order of `known.records`; -inf where it has none."""
    known.add(sample_tables(method.config))
    found = method.scores({asset: known[asset].select(columns) for asset, columns in method.reads().items()})
    by_id = dict(zip(found["sample_id"].to_list(), found["score"].to_list(), strict=True))
    scores = [by_id.get(record["id"]) for record in known.records]
    return np.array([-np.inf if score is None else score for score in scores], dtype=np.float64)


def scores_of(known: list[Tables], wanted: Sequence[str] | None) -> tuple[dict[str, list[np.ndarray]], dict[str, str]]:
    """Return scores by label, a vector per data set, and why some methods did not run."""
    found: dict[str, list[np.ndarray]] = {}
    missing: dict[str, str] = {}
    for label, method, options in candidates():
        if wanted and method not in wanted and label not in wanted:
            continue
        say(f"method {label}")
        try:
            ready = [asked(each.case, method, options) for each in known]
        except ValueError as error:  # what the configuration lacks
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            missing[label] = reason.removeprefix("Value error, ")
            say(f"  not run: {missing[label]}")
        else:
            found[label] = [method_scores(each, what) for each, what in zip(known, ready, strict=True)]
    return found, missing


def answers_known(known: Tables) -> dict[str, float]:
    """Return theta_B's mean probability of a response token, exp(-mean NLL), given everything, by kind."""
    perplexity = dict(known["perplexity/long"].select("sample_id", "perplexity").iter_rows())
    found: dict[str, list[float]] = {}
    for record in known.records:
        found.setdefault(record["source"], []).append(1 / perplexity[record["id"]])
    return {kind: float(np.mean(values)) for kind, values in found.items()}
