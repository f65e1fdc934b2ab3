"""Read everything that a store holds about one sample, and its place in every ranking."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.comparison.compare import SCORE, rank_spread, read_orders
from gateau_dagster.config import PRESETS, Config
from gateau_dagster.data.document_split import SPLIT
from gateau_dagster.data.sample import Sample, shard_keys, shard_of
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.explanation.card import framed_evidence
from gateau_dagster.explanation.maps import EvidenceMaps, evidence_maps
from gateau_dagster.methods.registry import GATEAU, chosen_methods, known_methods
from gateau_dagster.pipeline.selection_reads import CHOSEN, PRESETS_TABLE, compared_methods
from gateau_dagster.pipeline.state import State
from gateau_dagster.readable import number, printable
from gateau_dagster.selection.combine import ranked_by_score
from gateau_dagster.selection.presets import FORMS, with_terms


@dataclass(frozen=True, kw_only=True)
class Summands:
    """The two terms whose weighted sum is a score. `instead`: replaces `weight · second` if a sample lacks the term."""

    names: tuple[str, str]
    weights: tuple[float, float]
    instead: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """One ranking of the samples.

    title: what a high score means.
    table: `sample_id`, `rank` i32 (1 is the best), `score` f64, of samples with a score; with `summands` also `first`,
        `second` f64, as the terms enter the score.
    is_method: whether it is a method's own ranking, and not that of another preset of GATEAU.
    """

    name: str
    title: str
    table: pl.DataFrame
    is_method: bool = True
    summands: Summands | None = None


def rankings(
    config: Config, combined_scores: pl.DataFrame | None, method_scores: Mapping[str, pl.DataFrame]
) -> list[Ranking]:
    """Return all rankings, the one that decides the selection first.

    Args:
        combined_scores: tables.COMBINED_SCORES with the columns of every preset; None if GATEAU ranks nothing.
        method_scores: tables.METHOD_SCORES of methods by name; GATEAU's are ignored if `combined_scores` is given.
    """
    found = [] if combined_scores is None else _of_gateau(config, combined_scores)
    known = {ranking.name for ranking in found}
    for name, table in method_scores.items():
        if name not in known and table["score"].count():
            found.append(Ranking(name=name, title=known_methods(config)[name].title, table=ranked_by_score(table)))
    return sorted(found, key=lambda ranking: ranking.name != config.selection.method)


def _of_gateau(config: Config, scores: pl.DataFrame) -> list[Ranking]:
    """Return the configured preset under the method's own name, with its terms; then the other presets."""
    selection, title = config.selection, known_methods(config)[GATEAU].title
    alpha, names = selection.alphas[selection.preset], [form.name for form in FORMS[selection.preset]]
    with_sum = with_terms(scores, selection.preset)
    summands = Summands(
        names=(names[0], names[1]),
        weights=(alpha, 1 - alpha),
        instead=max(with_sum["without_cas"].to_list(), default=0.0),
    )
    terms = {"first": "hmp_term", "second": "cas_term"}
    decides = Ranking(
        name=GATEAU,
        title=f"{title} Preset {selection.preset}.",
        table=_ordered(with_sum, selection.preset, terms),
        summands=summands,
    )
    others = [
        Ranking(
            name=f"{GATEAU}, preset {preset}",
            title=f"{title} Preset {preset}.",
            table=_ordered(scores, preset, {}),
            is_method=False,
        )
        for preset in PRESETS
        if preset != selection.preset
    ]
    return [decides, *others]


def _ordered(scores: pl.DataFrame, preset: str, further: Mapping[str, str]) -> pl.DataFrame:
    columns = {"rank": f"rank_{preset}", "score": f"score_{preset}", **further}
    return scores.select("sample_id", **{name: pl.col(column) for name, column in columns.items()}).sort("rank")


def disputed(samples: Sequence[str], found: Sequence[Ranking]) -> pl.Series | None:
    """Return how far apart the methods rank each of `samples`: see comparison.compare.rank_spread.

    With a single method, its presets are compared; None with a single ranking.
    """
    methods = [ranking for ranking in found if ranking.is_method]
    counted = methods if len(methods) > 1 else list(found)
    if len(counted) < 2:
        return None
    frame = pl.DataFrame({"sample_id": samples}, schema={"sample_id": pl.String()}).with_row_index("row")
    for ranking in counted:
        scores = ranking.table.select("sample_id", pl.col("score").alias(SCORE + ranking.name))
        frame = frame.join(scores, on="sample_id", how="left")
    frame = frame.sort("sample_id")
    spread = rank_spread(read_orders(frame, [ranking.name for ranking in counted]))
    return frame.with_columns(spread=spread).sort("row")["spread"]


RAW = "raw_long_sft"
_NAMED = 5
_FEW, _MANY = 60, 1500  # characters of a text


@dataclass(frozen=True, kw_only=True)
class Place:
    """A sample's place in a ranking; `rank` and `score` are None if it has no score.

    first, second: the terms of Ranking.summands; None if there are none.
    """

    ranking: Ranking
    rank: int | None
    score: float | None
    first: float | None = None
    second: float | None = None

    @property
    def scored(self) -> int:
        """Return how many samples the ranking orders."""
        return self.ranking.table.height


@dataclass(frozen=True, kw_only=True, repr=False)
class OneSample:
    """A sample, its places, the tables that rejected it, and its evidence.

    selected, reserved: None if that table does not exist yet.
    rejected: asset and reason.
    """

    sample: Sample
    places: Sequence[Place]
    selected: bool | None
    reserved: bool | None
    rejected: Sequence[tuple[str, str]]
    maps: EvidenceMaps

    def __repr__(self) -> str:
        ranks = "".join(f", {place.ranking.name}={place.rank}" for place in self.places)
        texts = (
            f"context of {len(self.sample.context):,} characters, response={_beginning(self.sample.response, _FEW)!r}"
        )
        return f"OneSample({self.sample.sample_id!r}, selected={self.selected}{ranks}, {texts})"

    def _repr_html_(self) -> str:
        """Return the sample for a notebook: ranks, texts, of which long ones are shortened, and its evidence map."""
        sample, found = self.sample, self.maps.maps.get(self.sample.sample_id)
        context = (f"context, {len(sample.context):,} characters", sample.context)
        rows = [
            ("selected", {True: "yes", False: "no", None: "not chosen from yet"}[self.selected]),
            *((f"rank by {place.ranking.name}", _rank_of(place)) for place in self.places),
            *((f"rejected by {asset}", reason) for asset, reason in self.rejected),
            ("instruction", sample.instruction),
            ("response", sample.response),
            *([context] if found is None else []),
        ]
        cells = "".join(
            f'<tr><th style="text-align:left;vertical-align:top">{escape(name)}</th>'
            f'<td style="text-align:left;white-space:pre-wrap">{escape(printable(_beginning(text, _MANY)))}</td></tr>'
            for name, text in rows
        )
        shown = "" if found is None else framed_evidence(found)
        return f"<table><caption>{escape(sample.sample_id)} ({escape(sample.source)})</caption>{cells}</table>{shown}"


def _beginning(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _rank_of(place: Place) -> str:
    return "no score" if place.rank is None else f"{place.rank:,} of {place.scored:,}, score {number(place.score)}"


def find_sample(state: State, name: str) -> Sample:
    """Return the sample with this id, or the only one whose id begins with it.

    Raises:
        GateauError: no sample or several match; the message names them, or gives the reason for the rejection.
    """
    shards = state.config.long_sft.shards
    if _is_text(name):
        shard = shard_keys(shards)[shard_of(name, shards)]
        found = state.store.read_rows(RAW, shard, pl.DataFrame({"sample_id": [name]}))
        if not found.is_empty():
            return Sample.of_row(found.row(0, named=True))
        rejected = dict(state.store.read_rejected(RAW, [shard]).iter_rows())
        if name in rejected:
            raise GateauError("show.sample", f"sample {name} is not in the data: {rejected[name]}")
    ids = [state.store.read(RAW, each, ["sample_id"])["sample_id"] for each in state.shards]
    if any(shard_of(each, shards) != place for place, here in enumerate(ids) for each in here):
        raise GateauError(
            "storage.out_of_date",
            f"The tables are from another value of long_sft.shards than {shards}: set it back, or run "
            f"`{gateau_command('run')}` to update them.",
        )
    alike = sorted(each for here in ids for each in here if name and each.startswith(name))
    if len(alike) != 1:
        others = f": {', '.join(alike[:_NAMED])}{' …' if len(alike) > _NAMED else ''}" if alike else ""
        raise GateauError(
            "show.sample",
            f"{len(alike) or 'no'} samples have an id that begins with {name!r}{others}. All are listed in "
            f"explore.html, beside the report.{_other_shards(state)}",
        )
    return find_sample(state, alike[0])


def _other_shards(state: State) -> str:
    """Return a sentence if the store has tables of more shards: their samples may not be in the fewer shards yet."""
    here = {name.removesuffix(".parquet") for name in state.store.files.names(RAW) if name.endswith(".parquet")}
    if here <= {*state.shards}:
        return ""
    return (
        f" The store has tables of another long_sft.shards than {len(state.shards)}, too: if that was changed, run "
        f"`{gateau_command('run')}` to bring all up to date."
    )


def _is_text(name: str) -> bool:
    """Return whether a table can hold it, since an argument of the command may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_sample(state: State, name: str) -> OneSample:
    """Return the data about a sample from the existing tables.

    Raises:
        GateauError: as `find_sample`; or a table is damaged, or has another version of the sample.
    """
    sample = find_sample(state, name)
    return OneSample(
        sample=sample,
        places=[_place(ranking, sample.sample_id) for ranking in made_rankings(state)],
        selected=_holds(state, CHOSEN, sample.sample_id),
        reserved=_is_reserved(state, sample.sample_id),
        rejected=list(_rejections(state, sample.sample_id)),
        maps=evidence_maps(state, [sample], partial(_is_made, state)),
    )


def read_by(state: State, method: str, sample: Sample) -> dict[str, Mapping[str, Any]]:
    """Return the values that a method reads of a sample, by table and column, without the texts."""
    found: dict[str, Mapping[str, Any]] = {}
    for asset, columns in chosen_methods(state.config)[method].reads().items():
        if asset == RAW or not _is_made(state, asset):
            continue
        partitions = state.pipeline.partitions(asset)
        shard = None if partitions == [None] else partitions[shard_of(sample.sample_id, len(partitions))]
        rows = state.store.read_rows(asset, shard, pl.DataFrame({"sample_id": [sample.sample_id]}))
        if not rows.is_empty():
            # For GATEAU's own scores, include all columns that they are made of.
            named = rows.columns[: len(tables.COMBINED_SCORES)] if asset == PRESETS_TABLE else columns
            wanted = [column for column in named if column not in {"sample_id", "digest"}]
            found[asset] = rows.select(wanted).row(0, named=True)
    return found


def made_rankings(state: State) -> list[Ranking]:
    """Return the rankings whose tables are made, the one that decides the selection first."""
    combined = (
        state.read(PRESETS_TABLE) if PRESETS_TABLE in state.pipeline.by_key and _is_made(state, PRESETS_TABLE) else None
    )
    made = (each for each in compared_methods(state.config) if _is_made(state, each.asset))
    return rankings(
        state.config, combined, {each.name: state.read(each.asset, ["sample_id", "score"]) for each in made}
    )


def ranking_table(state: State, method: str) -> str:
    """Return the table that a method's ranking in `made_rankings` is read from."""
    if method == GATEAU and PRESETS_TABLE in state.pipeline.by_key:
        return PRESETS_TABLE
    return chosen_methods(state.config)[method].asset


def _is_made(state: State, asset: str) -> bool:
    if asset not in state.pipeline.by_key:
        return False
    return all(state.stamp(asset, partition) is not None for partition in state.pipeline.partitions(asset))


def _place(ranking: Ranking, sample_id: str) -> Place:
    found = ranking.table.filter(sample_id=sample_id).drop("sample_id")
    known: dict[str, Any] = {"rank": None, "score": None} if found.is_empty() else found.row(0, named=True)
    return Place(ranking=ranking, **known)


def _holds(state: State, asset: str, sample_id: str) -> bool | None:
    return sample_id in state.read(asset, ["sample_id"])["sample_id"] if _is_made(state, asset) else None


def _is_reserved(state: State, sample_id: str) -> bool | None:
    if not _is_made(state, SPLIT):
        return None
    return sample_id in state.read(SPLIT, ["sample_id", "reserved"]).filter("reserved")["sample_id"]


def _rejections(state: State, sample_id: str) -> list[tuple[str, str]]:
    """Return the sample's rejections: by tables that models compute, read in its shard only, and by the selection."""
    shards = state.config.long_sft.shards
    shard = shard_keys(shards)[shard_of(sample_id, shards)]
    found = []
    for asset in state.pipeline.assets:
        if asset.table is not None:
            rejected = state.store.read_rejected(asset.key, [shard]).filter(sample_id=sample_id)
            found += [(asset.key, reason) for reason in rejected["reason"]]
    if _is_made(state, CHOSEN):
        found += [(CHOSEN, each) for each in state.read_rejected(CHOSEN).filter(sample_id=sample_id)["reason"]]
    return found
