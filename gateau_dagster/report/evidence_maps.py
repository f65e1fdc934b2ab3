"""The evidence maps of samples, from the store: rows are read by shard, and of the wanted samples alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.data.sample import Sample, shard_keys, shard_of
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.methods.spans import SpanMap
from gateau_dagster.models.known_model import known_tokenizer
from gateau_dagster.report.evidence import NAMED_GAIN, Evidence, EvidenceRows, Row, evidence
from gateau_dagster.report.span_strips import SpanStrip, prompt_strip, segment_strip
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, perplexity_asset

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import Config
    from gateau_dagster.pipeline.state import State

SHORT, LONG = perplexity_asset(THETA_A), perplexity_asset(THETA_B)
_GAINS = ["sample_id", "near_probability", "far_probability", "far_segment"]
# By sample, the far segments that its map names, ascending.
NAMED = pl.Schema({"sample_id": pl.String(), "named": pl.List(pl.Int32())})


@dataclass(frozen=True, kw_only=True)
class EvidenceMaps:
    """Maps by sample id, and those of the configured methods that read spans.

    missing: why there are none, in sentences; empty where nobody measured segments, too.
    """

    maps: Mapping[str, Evidence] = field(default_factory=dict)
    strips: Mapping[str, Sequence[SpanStrip]] = field(default_factory=dict)
    missing: str = ""


def no_evidence(samples: Sequence[Sample]) -> EvidenceMaps:
    """Of a store without tables."""
    del samples
    return EvidenceMaps()


def evidence_maps(
    state: State, samples: Sequence[Sample], is_made: Callable[[str], bool] | None = None
) -> EvidenceMaps:
    """The maps of those samples that the tables have rows of, which are to be up to date.

    Args:
        is_made: whether a required table can be read; a map is left out where one of its tables cannot. By default
            all can.

    Raises:
        GateauError: a table is not there, is damaged, or is of other texts than these.
    """
    missing: list[str] = []
    is_there = is_made or state.pipeline.required.__contains__
    pair = [asset for asset in (CAM, LONG, SHORT) if asset in state.pipeline.required]
    maps = _pair_maps(state, samples, missing) if CAM in pair and all(map(is_there, pair)) else {}
    strips: dict[str, list[SpanStrip]] = {}
    for methods, span_map in span_maps(state):
        if is_there(span_map.table):
            for strip in _strips(state, samples, maps, methods, span_map, missing):
                strips.setdefault(strip.sample.sample_id, []).append(strip)
    return EvidenceMaps(maps=maps, strips=strips, missing=" ".join(dict.fromkeys(missing)))


def _pair_maps(state: State, samples: Sequence[Sample], missing: list[str]) -> dict[str, Evidence]:
    required = state.pipeline.required
    if LONG not in required:
        missing.append(
            f"No configured method reads {LONG}, which says what of a context was cut off: add one that does."
        )
        return {}
    tokenizer = _tokenizer(state.config, THETA_B, missing)
    if tokenizer is None:
        return {}
    cam, long = (_rows(state, asset, samples) for asset in (CAM, LONG))
    short = _rows(state, SHORT, samples) if SHORT in required else {}
    return {
        one.sample_id: evidence(
            one,
            EvidenceRows(cam=cam[one.sample_id], long=long[one.sample_id], short=short.get(one.sample_id)),
            tokenizer,
            segment_length=state.config.scoring.segment_length,
            template=state.config.scoring.template,
        )
        for one in samples
        if one.sample_id in cam and one.sample_id in long
    }


def span_maps(state: State) -> list[tuple[list[str], SpanMap]]:
    """Of the configured methods whose tables are required, with their names; methods that read the same have one."""
    found: dict[tuple[str, str], tuple[list[str], SpanMap]] = {}
    for chosen in chosen_methods(state.config).values():
        span_map = chosen.method.span_map(state.config, chosen.options)
        if span_map is not None and span_map.table in state.pipeline.required:
            found.setdefault((span_map.table, span_map.adds), ([], span_map))[0].append(chosen.name)
    return [*found.values()]


def _strips(
    state: State,
    samples: Sequence[Sample],
    maps: Mapping[str, Evidence],
    methods: Sequence[str],
    span_map: SpanMap,
    missing: list[str],
) -> Iterator[SpanStrip]:
    tokenizer = _tokenizer(state.config, span_map.model, missing)
    rows = {} if tokenizer is None else _rows(state, span_map.table, samples)
    for one in samples:
        row = rows.get(one.sample_id)
        spans = None if row is None else span_map.spans(row)
        if spans is None or tokenizer is None:
            continue
        if spans.of != "context":
            template = state.config.scoring.template
            yield prompt_strip(methods, span_map.adds, one, spans, tokenizer, template)
        elif one.sample_id in maps:
            yield segment_strip(methods, span_map.adds, maps[one.sample_id], spans)


def _tokenizer(config: Config, model: str, missing: list[str]) -> PreTrainedTokenizerBase | None:
    """None, and the reason in `missing`, where it cannot tell where tokens stand."""
    found, path = known_tokenizer(config, model), config.models[model].path
    if found is None:
        missing.append(f"The tokenizer of models.{model}, {path}, is not on this machine.")
    elif not found.is_fast:
        missing.append(
            f"The tokenizer of models.{model}, {path}, does not say where its tokens stand in a text: it has no "
            "tokenizer.json."
        )
        return None
    return found


def _rows(state: State, asset: str, samples: Sequence[Sample]) -> dict[str, Row]:
    shards = state.config.long_sft.shards
    ids = pl.DataFrame({"sample_id": [one.sample_id for one in samples]}, schema={"sample_id": pl.String()})
    places = [shard_of(one.sample_id, shards) for one in samples]
    found: dict[str, Any] = {}
    for place, key in enumerate(shard_keys(shards)):
        if place in places:
            rows = state.store.read_rows(asset, key, ids)
            found |= {row["sample_id"]: row for row in rows.iter_rows(named=True)}
    return found


def named_by_sample(state: State) -> pl.DataFrame:
    """NAMED, of every row of `cam`; read shard by shard, since it is read with every response token.

    Raises:
        GateauError: the table is not there, or is damaged.
    """
    parts = [named_of(state.store.read(CAM, shard, _GAINS)) for shard in state.shards]
    return pl.concat([NAMED.to_frame(), *parts])


def named_of(cam: pl.DataFrame) -> pl.DataFrame:
    """NAMED of these rows of `cam`; the same segments as those of their maps."""
    gain = pl.col("far_probability").cast(pl.Float64) - pl.col("near_probability")
    named = (
        cam.explode(*_GAINS[1:])
        .filter(gain >= NAMED_GAIN, pl.col("far_segment").is_not_null())
        .group_by("sample_id")
        .agg(named=pl.col("far_segment").unique().sort())
    )
    found = cam.select("sample_id").join(named, on="sample_id", how="left", maintain_order="left")
    return found.with_columns(pl.col("named").fill_null(pl.lit([], dtype=pl.List(pl.Int32()))))
