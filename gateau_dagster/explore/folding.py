"""Split a context into its segments; in a long context, replace unimportant parts by their length."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from gateau_dagster.report.evidence import Evidence, EvidenceSegment

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
        else:
            found = _without(found, len(text))
    return found


def kept_segments(evidence: Evidence, most: int) -> Collection[int]:
    """Return the kept segments: the ends, and at most `most` others, named ones first, then by gain."""
    segments = evidence.segments
    by_gain = sorted(segments, key=lambda segment: (not segment.named, -segment.gain, segment.index))
    best = [segment for segment in by_gain[:most] if _gave(segment)]
    return {segment.index for segment in [*best, *segments[:ENDS], *segments[-ENDS:]]}


def _gave(segment: EvidenceSegment) -> bool:
    return segment.named or segment.gain >= GAVE


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


def _without(found: list[TextPart], characters: int) -> list[TextPart]:
    """Leave one more segment out, merged with those before it."""
    if found and found[-1].left_out and found[-1].seen:
        return [*found[:-1], TextPart(text="", left_out=found[-1].left_out + characters)]
    return [*found, TextPart(text="", left_out=characters)]
