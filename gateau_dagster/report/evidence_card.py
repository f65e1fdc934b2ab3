"""An evidence map as it is shown: what of context and response is printed, shaded by what, and what is folded away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gateau_dagster.report.evidence import Evidence, EvidenceSegment, EvidenceToken
from gateau_dagster.report.text import Snippet, printable, snippet

LEVELS = 8  # of shading; 0 is none
SLOTS = 8  # segments of a map that light up with their tokens
_SEGMENTS = (
    12  # printed of a context; of a longer one those that gave most, both ends, and where theta_A's sight begins
)
_SEGMENT_CHARACTERS, _NAMED_CHARACTERS = 1200, 6000
_UNSEEN_CHARACTERS = 300
_SHADED = 0.05  # gain from which a token is a link to its segment
_WHOLE_RESPONSE, _ABOUT = 400, 20  # tokens; of a longer response those about the shaded ones
_ROWS = 30


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A printed segment. number: from 1. before: text that theta_A did not see, `after` the rest of it.

    level: of shading, by what it gave. slot: see SLOTS; None for a segment that no token links to.
    """

    segment: EvidenceSegment
    number: int
    before: Snippet | None
    after: Snippet | None
    level: int
    slot: int | None


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Segments `first` to `last`, from 1, that are not printed; none of them gave more than `most`."""

    first: int
    last: int
    most: float


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Text of the response. token: None for plain text. left_out: tokens that are folded away here.

    level, slot: as of a passage. number: of the token's segment, from 1. linked: whether that is printed.
    """

    space: str = ""
    text: str = ""
    token: EvidenceToken | None = None
    level: int = 0
    slot: int | None = None
    number: int = 0
    linked: bool = False
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class TokenRow:
    """A line of the table of probabilities; `place` from 1."""

    place: int
    piece: Piece


@dataclass(frozen=True, kw_only=True)
class EvidenceCard:
    """`key` begins the anchors of its segments, and is unique on the page; `unseen` is text that no model saw.

    rows: the tokens with the largest gains, in order, of `tokens`.
    """

    key: str
    segments: int
    named: Sequence[int]
    unseen: Snippet | None
    context: Sequence[Passage | Fold]
    response: Sequence[Piece]
    rows: Sequence[TokenRow]
    tokens: int


def evidence_card(found: Evidence, key: str) -> EvidenceCard:
    """How a map is shown; all text is fit to be read, and still to be escaped."""
    printed = _printed(found)
    slots = _slots(found, printed)
    pieces = [_piece(token, printed, slots) for token in found.tokens]
    rows = sorted(range(len(pieces)), key=lambda place: (-found.tokens[place].gain, place))[:_ROWS]
    unseen = found.sample.context[: found.unseen]
    return EvidenceCard(
        key=key,
        segments=len(found.segments),
        named=[index + 1 for index in found.named],
        unseen=snippet(unseen, each=_UNSEEN_CHARACTERS, unseen=len(unseen)) if unseen else None,
        context=[*_context(found, printed, slots)],
        response=[*_merged(_shortened(pieces))],
        rows=[TokenRow(place=place + 1, piece=pieces[place]) for place in sorted(rows)],
        tokens=len(pieces),
    )


def level(value: float, most: float) -> int:
    """Of shading, in 0..LEVELS: what rounds to nothing has none, and the most has all."""
    return round(LEVELS * min(1.0, value / most)) if most > 0 else 0


def _printed(found: Evidence) -> set[int]:
    """The segments that are printed: all of a short context."""
    segments = found.segments
    if len(segments) <= _SEGMENTS:
        return set(range(len(segments)))
    near = next((segment.index for segment in segments if segment.near), None)
    ends = {0, len(segments) - 1, *(() if near is None else (near,))}
    order = sorted(segments, key=lambda segment: (not segment.named, segment.near, -segment.gain, segment.index))
    others = [segment.index for segment in order if segment.index not in ends]
    return ends | set(others[: _SEGMENTS - len(ends)])


def _slots(found: Evidence, printed: set[int]) -> Mapping[int, int]:
    """The printed segments that tokens link to, those that gave most first, each with a slot of its own."""
    linked = {token.segment for token in found.tokens if token.segment in printed and token.gain >= _SHADED}
    order = sorted((found.segments[index] for index in linked if index is not None), key=lambda one: -one.gain)
    return {segment.index: slot for slot, segment in enumerate(order[:SLOTS])}


def _context(found: Evidence, printed: set[int], slots: Mapping[int, int]) -> Iterator[Passage | Fold]:
    # One token made certain has full shade, so that nothing is shaded where nothing was given.
    most = max([1.0, *(segment.gain for segment in found.segments)])
    for shown, group in groupby(found.segments, key=lambda segment: segment.index in printed):
        together = [*group]
        if shown:
            yield from (_passage(found, segment, level(segment.gain, most), slots) for segment in together)
        else:
            gain = max(segment.gain for segment in together)
            yield Fold(first=together[0].index + 1, last=together[-1].index + 1, most=gain)


def _passage(found: Evidence, segment: EvidenceSegment, shade: int, slots: Mapping[int, int]) -> Passage:
    text, each = found.sample.context, (_NAMED_CHARACTERS if segment.named else _SEGMENT_CHARACTERS) // 2
    window = segment.start if found.window is None else found.window
    border = min(max(window, segment.start), segment.end)
    before, after = text[segment.start : border], text[border : segment.end]
    return Passage(
        segment=segment,
        number=segment.index + 1,
        before=snippet(before, each=each) if before else None,
        after=snippet(after, each=each) if after else None,
        level=shade,
        slot=slots.get(segment.index),
    )


def _piece(token: EvidenceToken, printed: set[int], slots: Mapping[int, int]) -> Piece:
    bare = token.text.lstrip()
    space = token.text[: len(token.text) - len(bare)]
    if token.segment is None or token.gain < _SHADED:
        return Piece(space=printable(space), text=printable(bare), token=token)
    return Piece(
        space=printable(space),
        text=printable(bare) or "␣",
        token=token,
        level=max(1, level(token.gain, 1.0)),
        slot=slots.get(token.segment),
        number=token.segment + 1,
        linked=token.segment in printed,
    )


def _shortened(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """All of a short response; of a longer one both ends and what stands about the shaded tokens."""
    if len(pieces) <= _WHOLE_RESPONSE:
        yield from pieces
        return
    ends = {*range(_ABOUT), *range(len(pieces) - _ABOUT, len(pieces))}
    shaded = sorted((place for place, piece in enumerate(pieces) if piece.level), key=lambda at: -pieces[at].level)
    kept = ends.union(*(range(at - _ABOUT, at + _ABOUT + 1) for at in shaded[: _WHOLE_RESPONSE // 2]))
    for shown, group in groupby(range(len(pieces)), key=kept.__contains__):
        places = [*group]
        if shown:
            yield from (pieces[place] for place in places)
        else:
            yield Piece(left_out=len(places))


def _merged(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Tokens without shade, next to each other, as one text."""
    for kind, group in groupby(pieces, key=lambda piece: "fold" if piece.left_out else bool(piece.level)):
        if kind is False:
            yield Piece(text="".join(piece.space + piece.text for piece in group))
        else:
            yield from group
