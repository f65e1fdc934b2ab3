"""Read the maps of samples from the store: what each segment, or stretch of the context, adds to the response."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from gateau_dagster.config.models import Template
from gateau_dagster.config.selection import Dependency
from gateau_dagster.data.sample import Sample, shard_keys, shard_of
from gateau_dagster.errors import GateauError, gateau_command
from gateau_dagster.explanation.evidence import Evidence, EvidenceRows, Row, check_version, evidence
from gateau_dagster.methods.method import SpanMap, Spans
from gateau_dagster.methods.registry import chosen_methods
from gateau_dagster.models.model_facts import local_facts
from gateau_dagster.models.prompt import build_prompt, token_offsets
from gateau_dagster.pipeline.model_checks import known_tokenizer
from gateau_dagster.pipeline.selection_reads import EVIDENCE
from gateau_dagster.readable import number, printable
from gateau_dagster.scoring.pair_tables import CAM, THETA_A, THETA_B, perplexity_asset
from gateau_dagster.selection.evidence import GAINS, MEANINGS, NAMED, named_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.config import Config
    from gateau_dagster.pipeline.state import State

SHORT, LONG = perplexity_asset(THETA_A), perplexity_asset(THETA_B)
LEVELS = 8  # of shading; 0 is no shading
_UNLIMITED = 2**62  # tokens
_MOST, _BEGINNING = 3, 160  # stretches described in words, and characters of each


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Characters [start, end) of a context, and what they add to the score."""

    start: int
    end: int
    added: float


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of a strip, in thousandths of the context. text: its description."""

    left: float
    width: float
    level: int
    text: str


@dataclass(frozen=True, kw_only=True)
class SpanStrip:
    """A sample's map by methods that share it.

    adds: the quantity that the spans add to, see SpanMap.
    elsewhere: what instruction and response add.
    """

    methods: Sequence[str]
    adds: str
    sample: Sample
    stretches: Sequence[Stretch]
    elsewhere: float

    @cached_property
    def bars(self) -> list[Bar]:
        """Return the map as a bar as long as the context."""
        whole = max(1, len(self.sample.context))
        largest = max((abs(one.added) for one in self.stretches), default=0.0)
        return [
            Bar(
                left=round(1000 * one.start / whole, 2),
                width=round(1000 * (one.end - one.start) / whole, 2),
                level=level(abs(one.added), largest),
                text=f"characters {one.start + 1:,} to {one.end:,}: {number(one.added)}",
            )
            for one in self.stretches
        ]

    @cached_property
    def most(self) -> list[tuple[float, str]]:
        """Return the stretches that add most, and how they begin."""
        adding = sorted((one for one in self.stretches if one.added), key=lambda one: -abs(one.added))[:_MOST]
        starts = (self.sample.context[one.start : min(one.end, one.start + _BEGINNING)] for one in adding)
        return [(one.added, printable(text)) for one, text in zip(adding, starts, strict=True)]


def segment_strip(methods: Sequence[str], adds: str, found: Evidence, spans: Spans) -> SpanStrip:
    """Return the strip of spans of the context, which are its map's segments."""
    stretches = [
        Stretch(start=segment.start, end=segment.end, added=added)
        for segment, added in zip(found.segments, spans.added, strict=True)
    ]
    return SpanStrip(methods=methods, adds=adds, sample=found.sample, stretches=stretches, elsewhere=0.0)


def prompt_strip(
    methods: Sequence[str],
    adds: str,
    sample: Sample,
    spans: Spans,
    tokenizer: PreTrainedTokenizerBase,
    template: Template,
) -> SpanStrip:
    """Return the strip of spans of the scoring prompt; a span that holds some of the context is shown as that part of
    it.

    Raises:
        GateauError: the spans do not match this sample and tokenizer.
    """
    whole = build_prompt(tokenizer, sample, max_length=_UNLIMITED, template=template)
    bos = int(spans.of == "prompt without bos" and whole.prefix[:1] == (tokenizer.bos_token_id,))
    before = len(whole.prefix) - bos
    dropped = whole.length - bos - spans.tokens
    if not 0 <= dropped <= len(whole.context):
        raise GateauError(
            "storage.out_of_date",
            f"{methods[0]}: sample {sample.sample_id} was scored with {spans.tokens} tokens, but its prompt has "
            f"{whole.length - bos} with that tokenizer: update the tables with `{gateau_command('run')}`",
        )
    # Tokens of the context that was seen; their positions begin behind the prefix.
    offsets = token_offsets(tokenizer, sample.context)[dropped:]
    stretches = [*_stretches(sample.context, offsets, spans, before)]
    elsewhere = sum(spans.added) - sum(one.added for one in stretches)
    return SpanStrip(methods=methods, adds=adds, sample=sample, stretches=stretches, elsewhere=elsewhere)


def _stretches(text: str, offsets: Sequence[tuple[int, int]], spans: Spans, before: int) -> Iterator[Stretch]:
    for position, added in enumerate(spans.added):
        begin = spans.first + position * spans.length - before
        first, last = max(begin, 0), min(begin + spans.length, len(offsets))
        if first < last:
            end = offsets[last][0] if last < len(offsets) else len(text)
            yield Stretch(start=offsets[first][0], end=end, added=added)


@dataclass(frozen=True, kw_only=True)
class DependedSpan:
    """A segment that the response depends on: characters [start, end) of the context, and how its text begins.

    gain: the rise in probability that the segment gives, summed over the response tokens. tokens: of the segment.
    """

    start: int
    end: int
    gain: float
    tokens: int
    beginning: str


@dataclass(frozen=True, kw_only=True)
class Depends:
    """The dependency of a response, from a row of the table `evidence`. spans: None if their places are unknown."""

    dependency: Dependency
    spans: Sequence[DependedSpan] | None

    @property
    def words(self) -> str:
        """Return `one_far: one far segment`."""
        return f"{self.dependency}: {MEANINGS[self.dependency]}"


@dataclass(frozen=True, kw_only=True)
class EvidenceMaps:
    """Maps by sample id, those of the configured methods that read spans, and what each response depends on.

    missing: sentences on why there are no maps; empty if segments were not measured at all.
    """

    maps: Mapping[str, Evidence] = field(default_factory=dict)
    strips: Mapping[str, Sequence[SpanStrip]] = field(default_factory=dict)
    depends: Mapping[str, Depends] = field(default_factory=dict)
    missing: str = ""


def evidence_maps(
    state: State, samples: Sequence[Sample], is_made: Callable[[str], bool] | None = None
) -> EvidenceMaps:
    """Return the maps of the samples that have rows in the tables, which must be up to date.

    Args:
        is_made: returns whether a required table can be read. A map is left out if one of its tables cannot. By default
            all can.

    Raises:
        GateauError: a table is missing, is damaged, or has other texts than these.
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
    depends = _depends(state, samples) if EVIDENCE in state.pipeline.required and is_there(EVIDENCE) else {}
    return EvidenceMaps(maps=maps, strips=strips, depends=depends, missing=" ".join(dict.fromkeys(missing)))


def _depends(state: State, samples: Sequence[Sample]) -> dict[str, Depends]:
    rows, found = _rows(state, EVIDENCE, samples), dict[str, Depends]()
    for one in samples:
        if (row := rows.get(one.sample_id)) is not None:
            check_version(EVIDENCE, row, one)
            spans = None if row["evidence"] is None else [_span(one.context, **span) for span in row["evidence"]]
            found[one.sample_id] = Depends(dependency=row["dependency"], spans=spans)
    return found


def _span(context: str, start: int, end: int, gain: float, tokens: int) -> DependedSpan:
    beginning = printable(context[start : min(end, start + _BEGINNING)])
    return DependedSpan(start=start, end=end, gain=gain, tokens=tokens, beginning=beginning)


def _pair_maps(state: State, samples: Sequence[Sample], missing: list[str]) -> dict[str, Evidence]:
    required = state.pipeline.required
    if LONG not in required:
        missing.append(
            f"No configured method reads {LONG}, which says what of a context was cut off: add one that does."
        )
        return {}
    tokenizer = _tokenizer(state.config, THETA_B, missing, of_data=state.config.scoring.template == "gateau")
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
    """Return the span maps of the configured methods whose tables are required, with the methods' names. Methods that
    read the same spans share one.
    """
    found: dict[tuple[str, str], tuple[list[str], SpanMap]] = {}
    for method in chosen_methods(state.config).values():
        span_map = method.span_map()
        if span_map is not None and span_map.table in state.pipeline.required:
            found.setdefault((span_map.table, span_map.adds), ([], span_map))[0].append(method.name)
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


def _tokenizer(
    config: Config, model: str, missing: list[str], *, of_data: bool = False
) -> PreTrainedTokenizerBase | None:
    """Return a model's tokenizer; None, with the reason in `missing`, if it cannot give token offsets. of_data: whether
    it reads only texts of the data.
    """
    found = known_tokenizer(config, model) if of_data else local_facts(config, model).tokenizer
    path = config.models[model].path
    if found is None:
        missing.append(f"The tokenizer of models.{model}, {path}, is not on this machine.")
    elif not found.is_fast:
        missing.append(
            f"The tokenizer of models.{model}, {path}, does not report the places of its tokens in a text: it has no "
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
    """Return NAMED for every row of `cam`, read shard by shard to limit memory.

    Raises:
        GateauError: the table is missing or damaged.
    """
    parts = [named_of(state.store.read(CAM, shard, ["sample_id", *GAINS])) for shard in state.shards]
    return pl.concat([NAMED.to_frame(), *parts])


def level(value: float, most: float) -> int:
    """Return the level of shading, in 0..LEVELS: 0 for what rounds to nothing, LEVELS for the largest value."""
    return round(LEVELS * min(1.0, value / most)) if most > 0 else 0
