"""Shorten a long context for display: its ends, and the segments with the largest gains."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from gateau_dagster.explanation.evidence import Evidence
from gateau_dagster.readable import printable

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
    """Return the text that no model saw, and the text that only theta_A saw; of a long context, only their ends."""
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


def shortened(text: str, longest: int) -> str:
    """Return a printable text; of a longer one its start, and how many characters were left out."""
    if len(text) <= longest:
        return printable(text)
    return f"{printable(text[:longest])} … ({len(text) - longest:,} characters left out)"
