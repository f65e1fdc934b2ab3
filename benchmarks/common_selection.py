"""The tables of the labelled benchmark set, as a pair of the synthetic language makes them: each is made once.

A table's file is named by everything that decides its rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import polars as pl
from common_case import Case, Record
from common_measure import say

from gateau_dagster import tables
from gateau_dagster.config.inputs import RECIPE_VERSION
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.flops import Meter, Work
from gateau_dagster.models.loading import LoadedModel, effective_max_length, load_model
from gateau_dagster.pipeline.code_versions import CODE_VERSIONS
from gateau_dagster.scoring.sample_table import Running, SampleTable
from gateau_dagster.scoring.scorer import Request, score_samples
from gateau_dagster.selection.combine import combine


class Tables(Mapping[str, pl.DataFrame]):
    """The tables of a case by asset name: read from disk, else computed and written, when first asked for.

    data: names the records. key: names the data and the pair, for other files about them.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.records = case.records()
        self.samples = [_sample(record) for record in self.records]
        self.rejects: dict[str, int] = {}
        self._known: dict[str, pl.DataFrame] = {}
        self._made: dict[str, SampleTable] = {}
        self._loaded: dict[str, LoadedModel] = {}
        self.data = _hash(self.records)
        self.key = _hash([asdict(case) | {"folder": "", "alpha": 0, "context": ""}, self.records, RECIPE_VERSION])

    def add(self, made: Mapping[str, SampleTable]) -> None:
        """Further tables that models compute; one of other settings replaces the table of that name."""
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

    def model(self, name: str) -> tuple[LoadedModel, int]:
        """A model of the pair and the tokens of a prompt that it may see."""
        config = self.case.config()
        if name not in self._loaded:
            place = {"dtype": config.scoring.dtype, "device": "cpu", "folder": Path()}
            self._loaded[name] = load_model(config.models[name], **place)
        loaded = self._loaded[name]
        return loaded, effective_max_length(loaded, config.models[name], config.scoring)

    def _find(self, asset: str) -> pl.DataFrame:
        if asset == "raw_long_sft":
            rows = [asdict(sample) | {"digest": sample.digest} for sample in self.samples]
            return pl.DataFrame(rows, schema=tables.schema(tables.RAW_LONG_SFT)).sort("sample_id")
        if asset == "combined_scores":
            return self._combined()
        if asset in self._made:
            table = self._made[asset]
            key = _hash([self.key, table.asset, self._sight(table.model), dict(table.settings), table.code_version])
            return self._kept(asset, key, table.columns, lambda: self._extra(table))
        kind, _, name = asset.partition("/")
        columns = tables.CAM if kind == "cam" else tables.PERPLEXITY
        name = name or "long"
        # The short model's sight decides which segments cam calls far.
        seen_by = [self._sight(name)] + ([self._sight("short")] if kind == "cam" else [])
        key = _hash([self.key, asset, *seen_by, [column.name for column in columns], code_version(asset)])
        return self._kept(asset, key, columns, lambda: self._scored(asset, name))

    def _sight(self, model: str) -> dict[str, Any]:
        """What of a model's section changes a row."""
        return {**self.case.config().models[model].model_dump(exclude_defaults=True), "path": model}

    def _kept(
        self, asset: str, key: str, columns: Sequence[tables.Column], make: Callable[[], list[Any]]
    ) -> pl.DataFrame:
        """The table on disk, else made and written in one step."""
        file = self.case.folder / "tables" / f"{asset.replace('/', '-')}-{key}.parquet"
        if not file.exists():
            say(f"  pair {self.case.pair_seed}: {asset} of {len(self.samples)} samples")
            rows = make()
            good = [row for row in rows if not isinstance(row, Reject)]
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(".part")
            pl.DataFrame(good, schema=tables.schema(tuple(columns))).sort("sample_id").write_parquet(scratch)
            scratch.replace(file)
        found = pl.read_parquet(file)
        self.rejects[asset] = len(self.samples) - found.height
        return found

    def _scored(self, asset: str, name: str) -> list[Any]:
        loaded, length = self.model(name)
        wants_cam = asset == "cam"
        requests = [Request(sample=each, perplexity=not wants_cam, cam=wants_cam) for each in self.samples]
        config = self.case.config()
        sight = self.model("short")[1] if wants_cam and config.models["short"].context == "window" else None
        outcomes = score_samples(
            loaded, requests, max_length=length, scoring=config.scoring, meter=Meter(), sight=sight
        )
        rows = [outcome.cam if wants_cam else outcome.perplexity for outcome in outcomes]
        return [row if isinstance(row, Reject) else _fields(row) for row in rows]

    def _extra(self, table: SampleTable) -> list[Any]:
        loaded, length = self.model(table.model)
        running = Running(max_length=length, scoring=self.case.config().scoring, work=Work())
        return [row if isinstance(row, Reject) else dict(row) for row in table.score(loaded, self.samples, running)]

    def _combined(self) -> pl.DataFrame:
        parts = (self["perplexity/short"], self["perplexity/long"], self["cam"])
        return combine(*parts, preset="robust", alpha=self.case.alpha)


def code_version(asset: str) -> str:
    """Of the code that makes a table which no method brings along."""
    return CODE_VERSIONS[asset.partition("/")[0]]


def _sample(record: Record) -> Sample:
    return Sample(sample_id=record["id"], **{name: text for name, text in record.items() if name != "id"})


def _fields(row: Any) -> dict[str, Any]:
    return {each.name: getattr(row, each.name) for each in fields(row)}


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
