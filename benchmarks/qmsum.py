"""A labelled set of meetings: samples cut from QMSum, in which people marked the turns that answer each question.

    .venv/bin/python benchmarks/qmsum.py --qmsum train.jsonl --tokenizer FOLDER_OR_NAME \
        --tokens 4096 --window 1024 --per-kind 16 --fold report --out build/qmsum.jsonl

--qmsum takes QMSum's JSON lines (Zhong et al. 2021, MIT), which are fetched by

    curl -LO https://raw.githubusercontent.com/Yale-LILY/QMSum/main/data/ALL/jsonl/train.jsonl

or a shorter form of them: lines with turns ([[speaker, text], ...]), queries ([{query, answer, spans: [[first, last
turn], ...]}]) and general ([{query, answer}]). A context is a stretch of one meeting, --tokens tokens of --tokenizer.
Where it ends decides whether marked turns are far, wholly beyond what a prompt of --window tokens (theta_A's) shows of
the context, or near, wholly within. Meetings are halved by a stable hash of their text: take `choose` for choosing
anything, `report` for figures that are reported. The output is the product's explicit form, so that `gateau run`
scores it. Its other columns are needs_far, evidence (character ranges of the context, one per range of marked turns),
places (far or near, one per range), border (first character that theta_A sees), context_tokens, window, fold, seed,
meeting and marked_turns. With --uncut, every question has its whole meeting instead, without labels.

| kind | needs far text | the question |
|---|---|---|
| far | yes | its marked turns are far; the window could show them |
| near | no | its marked turns are near |
| far_long | yes | its marked turns are far, and longer than what the window shows |
| far_and_near | yes | some of its ranges of turns are far, the others near |
| whole | yes | asks for a summary of the whole meeting, of which the context is a stretch |
| other | no | is about another meeting |
"""

import gzip
import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice, pairwise
from pathlib import Path
from random import Random
from typing import Any

from common import benchmark_parser, say
from real_text import write_samples
from real_text_passages import FOLDS, SLACK, Fold, Page, Paragraph, Room, page_of

from gateau_dagster.models.prompt import open_tokenizer

Record = dict[str, Any]
Turns = tuple[int, int]  # first and last
BREAK = "\n"  # between turns. One token, whatever follows: the counts of turns add up to that of their text.
_MARK = re.compile(r"\{\w+\}")  # of the transcribers: {vocalsound}, {disfmarker}


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question about a meeting, its answer, and the ranges of turns that people marked; none if it asks for all."""

    text: str
    answer: str
    marked: tuple[Turns, ...] = ()


@dataclass(frozen=True)
class Meeting:
    """A transcript, one text per turn, and the questions about it."""

    turns: tuple[str, ...]
    queries: tuple[Query, ...]
    general: tuple[Query, ...]

    @cached_property
    def name(self) -> str:
        """Return a stable hash of the transcript, in 12 hexadecimal digits."""
        return hashlib.sha256(BREAK.join(self.turns).encode()).hexdigest()[:12]

    @property
    def fold(self) -> Fold:
        """Return the half of the data: no meeting is in both."""
        return FOLDS[int(self.name, 16) % 2]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`needs_far`: whether what theta_A cannot see decides the response. places: where its marked turns stand.

    longer: whether its marked turns are longer than what the window shows; None: either.
    """

    needs_far: bool
    places: frozenset[str] = frozenset()
    longer: bool | None = None


KINDS = {
    "far": Kind(needs_far=True, places=frozenset({"far"}), longer=False),
    "near": Kind(needs_far=False, places=frozenset({"near"}), longer=False),
    "far_long": Kind(needs_far=True, places=frozenset({"far"}), longer=True),
    "far_and_near": Kind(needs_far=True, places=frozenset({"far", "near"})),
    "whole": Kind(needs_far=True),
    "other": Kind(needs_far=False),
}


def read_meetings(file: Path) -> list[Meeting]:
    """Read the meetings of a JSON-lines file, gzip or not. ValueError names a line that is in neither form."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        return [_meeting(json.loads(line), number) for number, line in enumerate(lines, start=1) if line.strip()]


def _meeting(record: Mapping[str, Any], number: int) -> Meeting:
    try:
        if "meeting_transcripts" in record:
            spoken = [(each["speaker"], each["content"]) for each in record["meeting_transcripts"]]
            queries, spans, general = record["specific_query_list"], "relevant_text_span", record["general_query_list"]
        else:
            spoken, queries, spans, general = record["turns"], record["queries"], "spans", record["general"]
        texts = [" ".join(_MARK.sub(" ", text).split()) for _, text in spoken]
        turns = [f"{speaker}: {text}" if text else "" for (speaker, _), text in zip(spoken, texts, strict=True)]
        asked = [(each, [(int(a), int(b)) for a, b in each[spans]]) for each in queries]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"line {number}: a meeting of QMSum was expected, but it lacks or has a wrong {error}"
        ) from error
    # A turn without a word is left out: `kept` counts the turns before each place.
    kept = [0]
    for turn in turns:
        kept.append(kept[-1] + bool(turn))
    return Meeting(
        turns=tuple(filter(None, turns)),
        queries=tuple(
            Query(text=each["query"], answer=each["answer"], marked=_merged(ranges, kept)) for each, ranges in asked
        ),
        general=tuple(Query(text=each["query"], answer=each["answer"]) for each in general),
    )


def _merged(ranges: Sequence[Turns], kept: Sequence[int]) -> tuple[Turns, ...]:
    """Return the ranges in order, as numbers of the turns that have words, those that touch as one."""
    found: list[Turns] = []
    for first, last in sorted((kept[first], kept[min(last + 1, len(kept) - 1)] - 1) for first, last in ranges):
        if last < first:
            continue
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """The stretches of a meeting that fill a room."""

    meeting: Meeting
    room: Room

    @cached_property
    def until(self) -> list[int]:
        """The tokens before each turn, with separators; then those of the whole meeting."""
        texts = [turn + BREAK for turn in self.meeting.turns]
        ids = self.room.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [0, *accumulate(len(each) for each in ids)]

    def ends(self, kind: Kind, marked: Sequence[Turns], visible: int) -> list[int]:
        """Return the turns at which a stretch can end so that the marked turns stand where the kind wants them."""
        until, found = self.until, list[int]()
        if marked and kind.longer not in (None, until[marked[-1][1] + 1] - until[marked[0][0]] > visible - SLACK):
            return []
        for end in range(marked[-1][1] if marked else 0, len(self.meeting.turns)):
            total = until[end + 1]
            places = {self._place(total - until[first], total - until[last + 1], visible) for first, last in marked}
            fits = not marked or total - until[marked[0][0]] <= self.room.tokens - SLACK
            if total >= self.room.tokens and fits and places == kind.places:
                found.append(end)
        return found

    @staticmethod
    def _place(begin: int, stop: int, visible: int) -> str:
        """Return the place of turns that begin and stop so many tokens before the stretch's end."""
        return "near" if begin <= visible - SLACK else "far" if stop >= visible + SLACK else "border"

    def page(self, end: int, marked: Sequence[Turns], visible: int) -> Page:
        """Return the turns up to `end` that the room holds. The first of them loses its start."""
        until, turns = self.until, self.meeting.turns
        start = next(turn for turn in range(end, -1, -1) if until[end + 1] - until[turn] >= self.room.tokens)
        borders = [start + 1, *(place for first, last in marked for place in (first, last + 1)), end + 1]
        # Every other block is a marked range.
        blocks = [BREAK.join(turns[begin:stop]) for begin, stop in pairwise(borders)]
        parts = [Paragraph(text=text, evidence=number % 2 == 1) for number, text in enumerate(blocks)]
        words, whole = turns[start].split(), self.room.tokens - (until[end + 1] - until[start + 1])
        counts = range(1, len(words) + 1)
        kept = bisect_right(counts, whole, key=lambda count: self.room.count(" ".join(words[-count:]) + BREAK))
        while True:
            begun = Paragraph(text=" ".join(words[len(words) - kept :]))
            page = page_of([each for each in (begun, *parts) if each.text], self.room, visible, BREAK)
            if page.tokens <= self.room.tokens or not kept:
                return page
            kept -= 1  # together the turns can have some more tokens than apart


def make_samples(
    meetings: Iterable[Meeting],
    room: Room,
    *,
    fold: Fold,
    per_kind: int,
    seed: int,
    kinds: Iterable[str] = tuple(KINDS),
) -> list[Record]:
    """Return `per_kind` samples of each kind, fewer of one that has fewer questions; the same for the same arguments.

    The first samples of a kind are the same for any number. No question is asked twice in a kind.

    Raises ValueError where the half has no sample of a kind in this room.
    """
    made = drawn_samples(meetings, room, fold=fold, seed=seed, kinds=kinds)
    return [sample for samples in made.values() for sample in islice(samples, per_kind)]


def drawn_samples(
    meetings: Iterable[Meeting], room: Room, *, fold: Fold, seed: int, kinds: Iterable[str] = tuple(KINDS)
) -> dict[str, Iterator[Record]]:
    """Return the samples of each kind, each made when it is asked for. See make_samples."""
    half = {each.name: Stretches(meeting=each, room=room) for each in meetings if each.fold == fold}
    return {name: _numbered(name, half, room, fold, seed) for name in kinds}


def _numbered(name: str, half: Mapping[str, Stretches], room: Room, fold: Fold, seed: int) -> Iterator[Record]:
    number = -1
    for number, sample in enumerate(_of_kind(name, half, f"{seed}/{fold}/{name}")):
        yield {"sample_id": f"{name}-{fold}-{seed}-{number:04d}", **sample, "fold": fold, "seed": seed}
    if number < 0:
        raise ValueError(
            f"no question of the half {fold} makes a sample of kind {name} with {room.tokens} tokens and a window "
            f"of {room.window}: take another size or more meetings"
        )


def _of_kind(name: str, half: Mapping[str, Stretches], order: str) -> Iterator[Record]:
    """Yield a sample for each question that the kind can ask, in an order of this name."""
    kind, rng = KINDS[name], Random(order)
    asked = [
        (each, query)
        for each, stretches in half.items()
        for query in (stretches.meeting.general if name == "whole" else stretches.meeting.queries)
    ]
    rng.shuffle(asked)
    for about, query in asked:
        read = rng.choice([each for each in half if each != about]) if name == "other" else about
        marked = query.marked if kind.places else ()
        if bool(marked) != bool(kind.places):
            continue
        stretches = half[read]
        visible = stretches.room.visible(query.text, query.answer)
        ends = stretches.ends(kind, marked, visible)
        page = stretches.page(rng.choice(ends), marked, visible) if ends else None
        if page is None or {page.place(span) for span in page.evidence} != kind.places:
            continue
        yield {
            "source": name,
            "context": page.context,
            "instruction": query.text,
            "response": query.answer,
            "needs_far": kind.needs_far,
            "evidence": [list(span) for span in page.evidence],
            "places": [page.place(span) for span in page.evidence],
            "border": page.border,
            "context_tokens": page.tokens,
            "window": stretches.room.window,
            "meeting": read,
            "marked_turns": sum(last - first + 1 for first, last in marked),
        }


def whole_meetings(meetings: Iterable[Meeting]) -> list[Record]:
    """Return every question with the whole transcript, as the data set gives them: no label, no cut."""
    return [
        {
            "sample_id": f"{each.name}-{number:03d}",
            "source": "qmsum",
            "context": BREAK.join(each.turns),
            "instruction": query.text,
            "response": query.answer,
        }
        for each in meetings
        for number, query in enumerate((*each.queries, *each.general))
    ]


def main(given: list[str] | None = None) -> int:
    """Parse, make, write."""
    parser = benchmark_parser(__doc__, "JSON lines; gzip if it ends in .gz", required=True)
    add = parser.add_argument
    add("--qmsum", type=Path, required=True, help="meetings: see above")
    add("--tokenizer", required=True, help="folder or hub name of the model that will read them")
    add("--uncut", action="store_true", help="every question with its whole meeting, without labels")
    add("--tokens", type=int, default=4096, help="of a context")
    add("--window", type=int, default=1024, help="of theta_A, in tokens of the prompt")
    add("--template", choices=["gateau", "chat"], default="gateau", help="as scoring.template")
    add("--per-kind", type=int, default=16)
    add("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    add("--seed", type=int, default=0)
    add("--fold", choices=FOLDS, default="choose")
    options = parser.parse_args(given)
    if options.uncut:
        write_samples(whole_meetings(read_meetings(options.qmsum)), options.out)
        return 0
    sizes = {"tokens": options.tokens, "window": options.window, "template": options.template}
    room = Room(tokenizer=open_tokenizer(options.tokenizer), **sizes)
    more = {"per_kind": options.per_kind, "seed": options.seed, "kinds": options.kinds}
    try:
        records = make_samples(read_meetings(options.qmsum), room, fold=options.fold, **more)
    except ValueError as error:
        say(f"Error: {error}")
        return 1
    write_samples(records, options.out)
    far_kinds = [name for name in options.kinds if KINDS[name].needs_far]
    say(f"{len(records)} samples, {sum(each['needs_far'] for each in records)} of which need far text: {options.out}")
    say(f"selection.ground_truth: [{', '.join(far_kinds)}]")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
