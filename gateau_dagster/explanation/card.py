"""Lay out an evidence map: which parts of context and response are printed, shaded or folded; and write it as HTML."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from gateau_dagster.explanation.evidence import Evidence, EvidenceSegment, EvidenceToken
from gateau_dagster.explanation.maps import level
from gateau_dagster.readable import fixed, number, plural, printable


@dataclass(frozen=True, kw_only=True)
class Snippet:
    """The two ends of a text; `end` is empty when `start` is all of it. `left_out`: characters between them.

    unseen_start, unseen_end: text before `start` and `end` that no model saw.
    unseen: characters of the whole text that no model saw.
    """

    start: str
    end: str
    left_out: int
    unseen_start: str = ""
    unseen_end: str = ""
    unseen: int = 0


def snippet(text: str, *, each: int = 700, unseen: int = 0) -> Snippet:
    """Return at most `each` characters of either end of `text`, whose first `unseen` characters no model saw."""
    left_out = max(0, len(text) - 2 * each)
    first, last = (text[:each], text[-each:]) if left_out else (text, "")
    cut = max(0, unseen - (len(text) - len(last)))
    return Snippet(
        unseen_start=printable(first[:unseen]),
        start=printable(first[unseen:]),
        unseen_end=printable(last[:cut]),
        end=printable(last[cut:]),
        left_out=left_out,
        unseen=unseen,
    )


SLOTS = 8  # segments of a map that are highlighted together with their tokens
_SEGMENTS = (
    12  # segments printed per context; in a longer one both ends, theta_A's first, and those with the largest gains
)
_SEGMENT_CHARACTERS, _NAMED_CHARACTERS = 1200, 6000
_UNSEEN_CHARACTERS = 300
_SHADED = 0.05  # gain from which a token links to its segment
_WHOLE_RESPONSE, _ABOUT = 400, 20  # tokens; of a longer response, only the tokens around shaded ones are shown
_ROWS = 30


@dataclass(frozen=True, kw_only=True)
class Passage:
    """A printed segment.

    number: from 1.
    before: text that theta_A did not see.
    after: the rest of the text.
    level: of shading, by the segment's gain.
    slot: see SLOTS; None for a segment that no token links to.
    """

    segment: EvidenceSegment
    number: int
    before: Snippet | None
    after: Snippet | None
    level: int
    slot: int | None


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Segments `first` to `last`, from 1, that are not printed; none of them has a gain above `most`."""

    first: int
    last: int
    most: float


@dataclass(frozen=True, kw_only=True)
class ResponseText:
    """Text of the response.

    token: None for plain text.
    left_out: tokens that are folded away here.
    level, slot: as of a passage.
    number: of the token's segment, from 1.
    linked: whether that segment is printed.
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
class EvidenceCard:
    """An evidence map for display.

    key: the prefix of its segments' anchors, unique on the page.
    unseen: text that no model saw.
    rows: the tokens with the largest gains, out of `tokens`, with their places from 1.
    """

    key: str
    segments: int
    named: Sequence[int]
    unseen: Snippet | None
    context: Sequence[Passage | Fold]
    response: Sequence[ResponseText]
    rows: Sequence[tuple[int, ResponseText]]
    tokens: int


def evidence_card(found: Evidence, key: str) -> EvidenceCard:
    """Return a map for display; all text is printable and still has to be escaped."""
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
        rows=[(place + 1, pieces[place]) for place in sorted(rows)],
        tokens=len(pieces),
    )


def _printed(found: Evidence) -> set[int]:
    """Return the segments that are printed; all of a short context."""
    segments = found.segments
    if len(segments) <= _SEGMENTS:
        return set(range(len(segments)))
    near = next((segment.index for segment in segments if segment.near), None)
    ends = {0, len(segments) - 1, *(() if near is None else (near,))}
    given = [segment for segment in segments if segment.gain >= _SHADED and segment.index not in ends]
    others = [one.index for one in sorted(given, key=lambda one: (not one.named, one.near, -one.gain, one.index))]
    return ends | set(others[: _SEGMENTS - len(ends)])


def _slots(found: Evidence, printed: set[int]) -> Mapping[int, int]:
    """Return a distinct slot for each printed segment that tokens link to, in descending order of gain."""
    linked = {token.segment for token in found.tokens if token.segment in printed and token.gain >= _SHADED}
    order = sorted((found.segments[index] for index in linked if index is not None), key=lambda one: -one.gain)
    return {segment.index: slot for slot, segment in enumerate(order[:SLOTS])}


def _context(found: Evidence, printed: set[int], slots: Mapping[int, int]) -> Iterator[Passage | Fold]:
    # One token made certain has full shade, so that nothing is shaded if nothing was gained.
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


def _piece(token: EvidenceToken, printed: set[int], slots: Mapping[int, int]) -> ResponseText:
    bare = token.text.lstrip()
    space = token.text[: len(token.text) - len(bare)]
    if token.segment is None or token.gain < _SHADED:
        return ResponseText(space=printable(space), text=printable(bare), token=token)
    return ResponseText(
        space=printable(space),
        text=printable(bare) or "␣",
        token=token,
        level=max(1, level(token.gain, 1.0)),
        slot=slots.get(token.segment),
        number=token.segment + 1,
        linked=token.segment in printed,
    )


def _shortened(pieces: Sequence[ResponseText]) -> Iterator[ResponseText]:
    """Yield all of a short response; of a longer one, both ends and the text around the shaded tokens."""
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
            yield ResponseText(left_out=len(places))


def _merged(pieces: Iterator[ResponseText]) -> Iterator[ResponseText]:
    """Merge adjacent tokens without shade into one text."""
    for kind, group in groupby(pieces, key=lambda piece: "fold" if piece.left_out else bool(piece.level)):
        if kind is False:
            yield ResponseText(text="".join(piece.space + piece.text for piece in group))
        else:
            yield from group


def evidence_html(card: EvidenceCard) -> str:
    """Return a page that shows one evidence map, with the report's style and without a script."""
    source = (
        '{% from "evidence.html.j2" import evidence_map %}<!doctype html><meta charset="utf-8"><style>'
        '{% include "style.html.j2" %}{% include "evidence_style.html.j2" %}</style>{{ evidence_map(card) }}'
    )
    return html_environment().from_string(source).render(card=card)


def framed_evidence(evidence: Evidence) -> str:
    """Return a frame with the page of one evidence map, which a notebook's styles do not reach."""
    page = evidence_html(evidence_card(evidence, "e"))
    return f'<iframe srcdoc="{escape(page)}" style="width:100%;height:640px;border:0"></iframe>'


def html_environment(*packages: str) -> Environment:
    """Return an environment for the templates of this package and of others, which escapes all that they print."""
    found = (PackageLoader(name, package_path=".") for name in (*packages, "gateau_dagster.explanation"))
    environment = Environment(
        loader=ChoiceLoader([*found]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(fixed=fixed, number=number, plural=plural)
    return environment
