"""Write the samples in full, several per page, so that opening one does not load them all.

A long context is split into its segments, and its unimportant parts are replaced by their length.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from gateau_dagster.data.sample import Sample
from gateau_dagster.pipeline.declarations import EXPLORER_CODE_VERSION
from gateau_dagster.report.evidence import Evidence, EvidenceToken
from gateau_dagster.report.evidence_card import DependedSpan, EvidenceMaps, SpanStrip
from gateau_dagster.report.text import printable
from gateau_dagster.storage.stamp import fingerprint

PAGE_ROWS = 50
"""Samples per page."""
OPENING = 160
"""Characters of an instruction shown in the list."""
LONGEST = 20_000
"""Contexts with at most this many characters are shown whole."""
SEGMENTS = 24
"""In a longer context, the most segments that are shown besides its ends."""


ENDS = 1
"""Segments kept at either end of a context."""
GAVE = 0.01
"""A segment with a smaller gain, in probability, is kept only for its position."""


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A part of a context: `text`, or `left_out` characters instead of it.

    segment: its index; None before the first segment.
    seen: whether some model saw it.
    """

    text: str
    segment: int | None = None
    seen: bool = True
    left_out: int = 0


def pieces(context: str, evidence: Evidence | None, *, longest: int, most: int) -> list[TextPart]:
    """Return the context in order. If it is longer than `longest` characters, it keeps its ends and the `most` segments
    with the largest gains; without evidence, only its ends.
    """
    if evidence is None:
        return _ends(context, longest)
    kept = None if len(context) <= longest else kept_segments(evidence, most)
    found = _before(context, evidence, longest)
    for segment in evidence.segments:
        text = context[segment.start : segment.end]
        if kept is None or segment.index in kept:
            found.append(TextPart(text=text, segment=segment.index))
        elif found and found[-1].left_out and found[-1].seen:  # segments side by side are left out as one part
            found[-1] = replace(found[-1], left_out=found[-1].left_out + len(text))
        else:
            found.append(TextPart(text="", left_out=len(text)))
    return found


def kept_segments(evidence: Evidence, most: int) -> Collection[int]:
    """Return the kept segments: the ends, and at most `most` others, named ones first, then by gain."""
    segments = evidence.segments
    by_gain = sorted(segments, key=lambda segment: (not segment.named, -segment.gain, segment.index))
    best = [segment for segment in by_gain[:most] if segment.named or segment.gain >= GAVE]
    return {segment.index for segment in [*best, *segments[:ENDS], *segments[-ENDS:]]}


def _before(context: str, evidence: Evidence, longest: int) -> list[TextPart]:
    """Return what no model saw, and what only theta_A saw; of a long context, only their ends."""
    first = evidence.segments[0].start if evidence.segments else len(context)
    border = min(evidence.unseen, first)
    room = longest // 10 if len(context) > longest else len(context)
    unseen, other = _ends(context[:border], room), _ends(context[border:first], room)
    return [*(replace(piece, seen=False) for piece in unseen), *other]


def _ends(text: str, longest: int) -> list[TextPart]:
    each = max(1, longest // 2)
    if len(text) <= max(longest, 2 * each):
        return [TextPart(text=text)] if text else []
    return [TextPart(text=text[:each]), TextPart(text="", left_out=len(text) - 2 * each), TextPart(text=text[-each:])]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The files of a shard of `rows` samples: the beginnings of their instructions, and the pages, in order."""

    rows: int
    openings: str
    pages: Sequence[str]
    page_rows: int = PAGE_ROWS


def shard_files(shard: str, rows: int, versions: Mapping[str, Any]) -> Shard:
    """Return the names of a shard's files; they change if any of its inputs changed.

    Args:
        shard: its partition key.
        versions: of each table that its pages are made from, and of everything else that affects them.
    """
    key = fingerprint({"code": EXPLORER_CODE_VERSION, **versions})[:16]
    count = -(-rows // PAGE_ROWS)
    pages = [f"samples-{shard}-{number:0{len(str(count))}d}-{key}.js" for number in range(count)]
    return Shard(rows=rows, openings=f"openings-{shard}-{key}.js", pages=pages)


def openings(instructions: pl.Series) -> list[str]:
    """Return the beginning of each instruction, on one line."""
    return [" ".join(printable(text[: 2 * OPENING]).split())[:OPENING] for text in instructions]


def sample_content(sample: Sample, told: EvidenceMaps) -> dict[str, Any]:
    """Return a sample for the page: its texts, its evidence map if there is one, and the maps of methods."""
    evidence, depends = told.maps.get(sample.sample_id), told.depends.get(sample.sample_id)
    found: dict[str, Any] = {
        "instruction": shortened(sample.instruction, LONGEST // 2),
        "response": shortened(sample.response, LONGEST // 2),
        "context": [
            (printable(part.text), -1 if part.segment is None else part.segment, part.seen, part.left_out)
            for part in pieces(sample.context, evidence, longest=LONGEST, most=SEGMENTS)
        ],
        "characters": len(sample.context),
        "why_not": told.missing,
        "strips": [_strip(strip) for strip in told.strips.get(sample.sample_id, ())],
    }
    if depends is not None:
        found |= {"depends": depends.words, "spans": None if depends.spans is None else [*map(_span, depends.spans)]}
    if evidence is None:
        return found
    shown = {piece[1] for piece in found["context"]}
    return found | {
        "unseen": evidence.unseen,
        "tokens": [_token(token) for token in evidence.tokens],
        "segments": [
            (segment.index, None if segment.perplexity is None else round(segment.gain, 4), segment.near, segment.named)
            for segment in evidence.segments
            if segment.index in shown
        ],
        "segment_count": len(evidence.segments),
    }


def shortened(text: str, longest: int) -> str:
    """Return a printable text; of a longer one its start, and how many characters were left out."""
    if len(text) <= longest:
        return printable(text)
    return f"{printable(text[:longest])} … ({len(text) - longest:,} characters left out)"


def _token(token: EvidenceToken) -> tuple[Any, ...]:
    """Return text, probabilities, gain, segment and whether the token is named."""
    given = (token.short, token.none, token.near, token.far, token.full, token.gain)
    rounded = (None if value is None else round(value, 4) for value in given)
    return printable(token.text), *rounded, -1 if token.segment is None else token.segment, token.named


def _span(span: DependedSpan) -> tuple[Any, ...]:
    """Return the first and the last character from 1, the gain, the tokens and the beginning of the text."""
    return span.start + 1, span.end, round(span.gain, 4), span.tokens, span.beginning


def _strip(strip: SpanStrip) -> tuple[Any, ...]:
    """Return methods, what is added to, the shaded bars, the stretches that add most, and what is added elsewhere."""
    bars = [(bar.left, bar.width, bar.level, bar.text) for bar in strip.bars if bar.level]
    most = [(float(f"{added:.4g}"), text) for added, text in strip.most]
    return ", ".join(strip.methods), strip.adds, bars, most, float(f"{strip.elsewhere:.4g}")
