"""The tables of the labelled benchmark set, as a pair of the synthetic language makes them: each is made once.

A table's file is named by everything that decides its rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl
from common_case import AnyCase, Record
from common_measure import say

from gateau_dagster import tables
from gateau_dagster.config.inputs import RECIPE_VERSION
from gateau_dagster.data.sample import Reject, Sample
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.models.known_model import visible_tokens
from gateau_dagster.models.loading import LoadedModel, effective_max_length, load_model
from gateau_dagster.scoring.pair_tables import pair_tables
from gateau_dagster.scoring.sample_table import Running, SampleTable
from gateau_dagster.selection.combine import combine

CaseT = TypeVar("CaseT", bound=AnyCase)


class Tables(Mapping[str, pl.DataFrame], Generic[CaseT]):
    """The tables of a case by asset name: read from disk, else computed and written, when first asked for.

    data: names the records. key: names the data and the pair, for other files about them.
    """

    def __init__(self, case: CaseT) -> None:
        self.case = case
        self.records = case.records()
        self.samples = [_sample(record) for record in self.records]
        self.rejects: dict[str, int] = {}
        self._known: dict[str, pl.DataFrame] = {}
        self._made = {table.asset: table for table in pair_tables(case.config())}
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
        table = self._made[asset]
        # The short model's sight decides which segments cam calls far.
        seen_by = [self._sight(table.model)] + ([self._sight("short")] if table.needs_visible_window else [])
        names = [column.name for column in table.columns]
        key = _hash([self.key, asset, *seen_by, names, dict(table.settings), table.code_version])
        return self._kept(asset, key, table.columns, lambda: self._scored(table))

    def _sight(self, model: str) -> dict[str, Any]:
        """What of a model's section changes a row."""
        return {**self.case.config().models[model].model_dump(exclude_defaults=True), "path": model}

    def _kept(
        self, asset: str, key: str, columns: Sequence[tables.Column], make: Callable[[], list[Any]]
    ) -> pl.DataFrame:
        """The table on disk, else made and written in one step."""
        file = self.case.folder / "tables" / f"{asset.replace('/', '-')}-{key}.parquet"
        if not file.exists():
            say(f"  {self.case.name}: {asset} of {len(self.samples)} samples")
            rows = make()
            good = [row for row in rows if not isinstance(row, Reject)]
            file.parent.mkdir(parents=True, exist_ok=True)
            scratch = file.with_suffix(".part")
            pl.DataFrame(good, schema=tables.schema(tuple(columns))).sort("sample_id").write_parquet(scratch)
            scratch.replace(file)
        found = pl.read_parquet(file)
        self.rejects[asset] = len(self.samples) - found.height
        return found

    def _scored(self, table: SampleTable) -> list[Any]:
        config = self.case.config()
        loaded, length = self.model(table.model)
        sight = visible_tokens(config) if table.needs_visible_window else None
        running = Running(max_length=length, scoring=config.scoring, work=ForwardWork(), visible_tokens=sight)
        return [row if isinstance(row, Reject) else dict(row) for row in table.score(loaded, self.samples, running)]

    def _combined(self) -> pl.DataFrame:
        parts = (self["perplexity/short"], self["perplexity/long"], self["cam"])
        return combine(*parts, preset="robust", alpha=self.case.alpha)


def _sample(record: Record) -> Sample:
    return Sample(sample_id=record["id"], **{name: text for name, text in record.items() if name != "id"})


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
