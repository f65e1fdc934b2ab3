"""A context in pieces: its segments, or of a long one those that matter, and what stands between them left out."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from gateau_dagster.report.evidence import Evidence, EvidenceSegment

ENDS = 1
"""Segments at either end of a context that stay."""
GAVE = 0.01
"""A segment that gave less, in probability, stays for its place alone."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a context: `text`, or `left_out` characters instead of it.

    segment: which one it is; None before the first. seen: whether some model saw it.
    """

    text: str
    segment: int | None = None
    seen: bool = True
    left_out: int = 0


def pieces(context: str, evidence: Evidence | None, *, longest: int, most: int) -> list[Piece]:
    """The context in order. One of more than `longest` characters keeps its ends and the `most` segments that gave
    most; without evidence, its ends.
    """
    if evidence is None:
        return _ends(context, longest)
    kept = None if len(context) <= longest else kept_segments(evidence, most)
    found = _before(context, evidence, longest)
    for segment in evidence.segments:
        text = context[segment.start : segment.end]
        if kept is None or segment.index in kept:
            found.append(Piece(text=text, segment=segment.index))
        else:
            found = _without(found, len(text))
    return found


def kept_segments(evidence: Evidence, most: int) -> Collection[int]:
    """Those that are named, the ends, and of the others those that gave most, `most` together with the named ones."""
    segments = evidence.segments
    by_gain = sorted(segments, key=lambda segment: (not segment.named, -segment.gain, segment.index))
    best = [segment for segment in by_gain[:most] if _gave(segment)]
    return {segment.index for segment in [*best, *segments[:ENDS], *segments[-ENDS:]]}


def _gave(segment: EvidenceSegment) -> bool:
    return segment.named or segment.gain >= GAVE


def _before(context: str, evidence: Evidence, longest: int) -> list[Piece]:
    """What no model saw, and what theta_A alone saw: the ends where the context is long."""
    first = evidence.segments[0].start if evidence.segments else len(context)
    border = min(evidence.unseen, first)
    room = longest // 10 if len(context) > longest else len(context)
    unseen, other = _ends(context[:border], room), _ends(context[border:first], room)
    return [*(replace(piece, seen=False) for piece in unseen), *other]


def _ends(text: str, longest: int) -> list[Piece]:
    each = max(1, longest // 2)
    if len(text) <= max(longest, 2 * each):
        return [Piece(text=text)] if text else []
    return [Piece(text=text[:each]), Piece(text="", left_out=len(text) - 2 * each), Piece(text=text[-each:])]


def _without(found: list[Piece], characters: int) -> list[Piece]:
    """One more segment left out: together with those before it."""
    if found and found[-1].left_out and found[-1].seen:
        return [*found[:-1], Piece(text="", left_out=found[-1].left_out + characters)]
    return [*found, Piece(text="", left_out=characters)]
