"""A context of real passages with a wanted number of tokens, whose evidence stands where it is wanted.

Far: wholly beyond what theta_A's window shows of the context. Near: wholly within it. What the window shows is counted
with the product's own prompt, whatever its template.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from real_text_questions import Question

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.models.prompt import build_prompt, encode
from gateau_dagster.models.token_offsets import token_offsets

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SEPARATOR = "\n\n"
_SLACK = 12  # tokens: a passage's count alone and in the context may differ at its ends
_LONGEST = 2**20
Span = tuple[int, int]


class NoRoomError(ValueError):
    """The passages do not fit where they should stand."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a context may take: `tokens` of it in all, of which a prompt of `window` tokens shows the end."""

    tokenizer: "PreTrainedTokenizerBase"
    tokens: int
    window: int
    template: Template = "gateau"
    _known: dict[str, int] = field(default_factory=dict)

    def count(self, text: str) -> int:
        """Tokens of a text on its own."""
        if text not in self._known:
            self._known[text] = len(encode(self.tokenizer, text))
        return self._known[text]

    def visible(self, instruction: str, response: str) -> int:
        """`near_tokens`: how many context tokens theta_A sees beside frame, instruction and response."""
        sample = Sample(sample_id="", source="", context="", instruction=instruction, response=response)
        around = build_prompt(self.tokenizer, sample, max_length=_LONGEST, template=self.template).length
        return self.window - around


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """A piece of a context. evidence: whether the response is drawn from it."""

    text: str
    evidence: bool = False


@dataclass(frozen=True, kw_only=True)
class Places:
    """What has to stand far and near, evidence and others; far evidence keeps its order. `last` ends the context."""

    far: Sequence[Paragraph] = field(default=())
    near: Sequence[Paragraph] = field(default=())
    last: Paragraph | None = None


@dataclass(frozen=True, kw_only=True)
class Page:
    """A context; evidence: character ranges in it; border: the first character that theta_A sees; tokens: all of it."""

    context: str
    evidence: tuple[Span, ...]
    border: int
    tokens: int

    def place(self, span: Span) -> str:
        """`far`, `near`, or `border` for a range that theta_A sees a part of."""
        return "far" if span[1] <= self.border else "near" if span[0] >= self.border else "border"


def lay_out(places: Places, fillers: Iterable[Question], room: Room, visible: int, rng: Random) -> Page:
    """A context of at most `room.tokens` tokens, fewer by no more than a word or two; NoRoomError if that cannot be."""
    source = (Paragraph(text=each.shown) for each in fillers)
    near, border = _near_block(places, source, room, visible, rng)
    near_tokens = sum(_size(room, each) for each in (*border, *near))
    far, loose = _far_block(places, source, room, room.tokens - near_tokens, rng)
    page = _page([*far, *border, *near], room, visible)
    while page.tokens > room.tokens and far[loose].text:
        # Together the parts have some more tokens than apart: a filler pays for them.
        far[loose] = _cut(far[loose], room, _size(room, far[loose]) - (page.tokens - room.tokens))
        page = _page([each for each in (*far, *border, *near) if each.text], room, visible)
    wanted = {"far": sum(each.evidence for each in places.far)}
    wanted["near"] = sum(each.evidence for each in near)
    found = [page.place(span) for span in page.evidence]
    if page.tokens > room.tokens or any(found.count(name) != count for name, count in wanted.items()):
        raise NoRoomError(f"{page.tokens} tokens with evidence {', '.join(found)}, wanted {room.tokens} with {wanted}")
    return page


def _near_block(
    places: Places, source: Iterator[Paragraph], room: Room, visible: int, rng: Random
) -> tuple[list[Paragraph], list[Paragraph]]:
    """The paragraphs that the window shows as a whole, and those at its border."""
    near = list(places.near)
    used = sum(_size(room, each) for each in (*near, *([places.last] if places.last else [])))
    if used > visible - _SLACK:
        raise NoRoomError(f"near passages take {used} tokens, and the window shows {visible} of the context")
    border: list[Paragraph] = []
    while used < visible + _SLACK:
        paragraph = _next(source)
        size = _size(room, paragraph)
        if not border and used + size <= visible - _SLACK:
            near.append(paragraph)
        else:
            border.append(paragraph)
        used += size
    rng.shuffle(near)
    return near + ([places.last] if places.last else []), border


def _far_block(
    places: Places, source: Iterator[Paragraph], room: Room, left: int, rng: Random
) -> tuple[list[Paragraph], int]:
    """Paragraphs of `left` tokens together, wanted ones in order, fillers between; and which filler was cut to fit."""
    left -= sum(_size(room, each) for each in places.far)
    if left < 0:
        raise NoRoomError(f"{-left} tokens too many beyond the window of {room.window}")
    fillers: list[Paragraph] = []
    while left > 0 or not fillers:
        fillers.append(_next(source))
        left -= _size(room, fillers[-1])
    fillers[-1] = _cut(fillers[-1], room, _size(room, fillers[-1]) + left)
    slots = [True] * len(places.far) + [False] * len(fillers)
    rng.shuffle(slots)
    wanted, others = iter(places.far), iter(fillers)
    found = [next(wanted) if slot else next(others) for slot in slots]
    # The last filler is the one cut: it stands at the last slot of a filler.
    return found, len(slots) - 1 - slots[::-1].index(False)


def _page(paragraphs: Sequence[Paragraph], room: Room, visible: int) -> Page:
    context = SEPARATOR.join(each.text for each in paragraphs)
    offsets = token_offsets(room.tokenizer, context)
    evidence, begin = [], 0
    for each in paragraphs:
        if each.evidence:
            evidence.append((begin, begin + len(each.text)))
        begin += len(each.text) + len(SEPARATOR)
    hidden = max(len(offsets) - visible, 0)
    border = offsets[hidden][0] if hidden < len(offsets) else len(context)
    return Page(context=context, evidence=tuple(evidence), border=border, tokens=len(offsets))


def _size(room: Room, paragraph: Paragraph) -> int:
    return room.count(paragraph.text + SEPARATOR)


def _cut(paragraph: Paragraph, room: Room, tokens: int) -> Paragraph:
    """As many of its first words as have at most `tokens` tokens with the separator; none if that is no sentence."""
    words = paragraph.text.split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if room.count(" ".join(words[:middle]) + SEPARATOR) <= tokens:
            low = middle
        else:
            high = middle - 1
    return Paragraph(text=" ".join(words[:low]))


def _next(source: Iterator[Paragraph]) -> Paragraph:
    found = next(source, None)
    if found is None:
        raise NoRoomError("the file has too few passages for a context of this length")
    return found
