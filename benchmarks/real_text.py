"""A labelled set of real text: samples made of Natural Questions, of which it is known where their evidence stands.

    .venv/bin/python benchmarks/real_text.py --nq natural_questions.jsonl.gz --tokenizer FOLDER_OR_NAME \
        --tokens 2048 --window 1024 --per-kind 16 --seed 0 --fold report --out build/real_text.jsonl

--nq takes JSON lines with question, answers, title and passage, or the public file, which is fetched by

    curl -LO https://raw.githubusercontent.com/nelson-liu/lost-in-the-middle/main/qa_data/nq-open-oracle.jsonl.gz

(2,655 questions; MIT, of Natural Questions, CC BY-SA 3.0). A context is a row of real passages with their titles, cut
to --tokens tokens of --tokenizer; far evidence stands wholly beyond what a prompt of --window tokens (theta_A's) shows
of the context, near evidence wholly within. Questions are halved by a stable hash of their page's title: take `choose`
for choosing anything, `report` for figures that are reported. The output is the product's explicit form, so that
`gateau run` scores it, with other columns: needs_far, evidence and answers (character ranges of the context), places
(far or near, one a range of evidence), border (first character that theta_A sees), context_tokens, window, short (an
answer of at most three tokens), gold (character ranges of the response that the text decides; in far kinds only
those that far text decides), questions, page (title of the first question's page, or the instruction where there is
none), fold, seed. Kinds and their labels: real_text_kinds.py. --samples far=60 near=725 none=415 makes so many samples
by what they need, in equal parts of its kinds, instead of --per-kind of each. With --follow-ups, each is followed by
samples that ask its context for something else: up to so many on its passages, and one of each kind that needs no text.
They have the id of the first in `follows`, and its page.
"""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from common import benchmark_parser, say
from real_text_kinds import ALL_KINDS, KINDS, NEEDS, SHORT_TOKENS, Desk, Draft, Kind, asked_next, fillers, has_strays
from real_text_passages import FOLDS, Fold, NoRoomError, Page, Passages, Question, Room, lay_out, read_questions

from gateau_dagster.models.prompt import open_tokenizer
from gateau_dagster.storage.local import fill_with, replace_local

_TRIES = 200
Record = dict[str, Any]


def make_samples(
    questions: Sequence[Question],
    room: Room,
    *,
    fold: Fold,
    per_kind: int | Mapping[str, int],
    seed: int,
    kinds: Iterable[str] = tuple(KINDS),
    follow_ups: int = 0,
) -> list[Record]:
    """Return `per_kind` samples of each kind, the same for the same arguments. A kind repeats no question if it can.

    The first samples of a kind are the same for any number of them. Each is followed by others with its context, up to
    `follow_ups` of them on its passages, see asked_next. They have its `page`, since one context is one draw. No
    follow-up is about a page that another context is asked about.

    Raises ValueError, with the reason, where a kind cannot be made in this room or of these questions.
    """
    passages = Passages(questions, fold)
    if not passages.askable:
        raise ValueError(f"none of the {len(questions)} questions is of the half {fold!r} and can be asked")
    firsts: list[tuple[Record, Page, Desk]] = []
    asked: set[str] = set()  # titles of pages
    for name in kinds:
        used: set[str] = set()
        for number in range(per_kind if isinstance(per_kind, int) else per_kind.get(name, 0)):
            rng = Random(f"{seed}/{fold}/{name}/{number}")
            desk = Desk(passages=passages, room=room, rng=rng)
            draft, page = _made(ALL_KINDS[name], desk, used)
            used.add(draft.instruction)
            key, about = f"{name}-{fold}-{seed}-{number:04d}", {"page": draft.page, "fold": fold, "seed": seed}
            firsts.append(({"sample_id": key, **_record(ALL_KINDS[name], draft, page, desk), **about}, page, desk))
            asked |= {question.title for question in draft.questions}
    made: list[Record] = []
    for record, page, desk in firsts:
        made.append(record)
        key, about = record["sample_id"], {name: record[name] for name in ("page", "fold", "seed")}
        for place, (kind, next_draft, own) in enumerate(asked_next(page, desk, follow_ups, asked), start=1):
            more = _record(kind, next_draft, own, desk)
            made.append({"sample_id": f"{key}-{place}", **more, **about, "follows": key})
    return made


def by_kind(needs: Mapping[str, int]) -> dict[str, int]:
    """Return the samples of each kind for numbers by what they need, see NEEDS: as equal as they can be."""
    return {
        name: count // len(NEEDS[need]) + (place < count % len(NEEDS[need]))
        for need, count in needs.items()
        for place, name in enumerate(NEEDS[need])
    }


def _made(kind: Kind, desk: Desk, used: set[str]) -> tuple[Draft, Page]:
    """Return a draft with its context; one that was asked before in this kind only where no other is found."""
    reason = "no question of this half fits it"
    for attempt in range(_TRIES):
        draft = kind.make(desk)
        if draft is None or (draft.instruction in used and attempt < _TRIES // 2):
            continue
        visible = desk.room.visible(draft.instruction, draft.response)
        try:
            page = lay_out(draft, fillers(desk, draft), desk.room, visible, desk.rng)
        except NoRoomError as error:
            reason = str(error)
            continue
        if not has_strays(draft, page):
            return draft, page
        reason = "an answer stands outside the evidence, across two passages"
    raise ValueError(
        f"kind {kind.name} cannot be made with {desk.room.tokens} tokens, a window of {desk.room.window} and "
        f"{len(desk.passages.all)} passages: {reason}. Take a longer context, another window or more questions."
    )


def _record(kind: Kind, draft: Draft, page: Page, desk: Desk) -> Record:
    counts = [desk.room.count(f" {answer}") for answer in draft.answers]
    return {
        "source": kind.name,
        "context": page.context,
        "instruction": draft.instruction,
        "response": draft.response,
        "needs_far": kind.needs_far,
        "evidence": [list(span) for span in page.evidence],
        "places": [page.place(span) for span in page.evidence],
        "answers": [list(span) for span in _answer_spans(draft, page)],
        "short": bool(counts) and max(counts) <= SHORT_TOKENS,
        "gold": [list(span) for span in draft.gold],
        "border": page.border,
        "context_tokens": page.tokens,
        "window": desk.room.window,
        "questions": [each.text for each in draft.questions],
    }


def _answer_spans(draft: Draft, page: Page) -> list[tuple[int, int]]:
    """Return where the answers of the response stand in the evidence, every time."""
    found = set()
    for answer in filter(None, draft.answers):
        for begin, end in page.evidence:
            starts = (at for at in range(begin, end) if page.context.startswith(answer, at, end))
            found |= {(at, at + len(answer)) for at in starts}
    return sorted(found)


def write_samples(records: Iterable[Record], file: Path) -> None:
    """Write JSON lines, gzip if the file's name ends in .gz."""
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()
    # Without a time in the header the same samples are the same bytes.
    data = gzip.compress(text, mtime=0) if file.suffix == ".gz" else text
    replace_local(file, lambda part: fill_with(part, data))


def main(given: list[str] | None = None) -> int:
    """Parse, make, write."""
    parser = benchmark_parser(__doc__, "JSON lines; gzip if it ends in .gz", required=True)
    add = parser.add_argument
    add("--nq", type=Path, required=True, help="questions with passages: see above")
    add("--tokenizer", required=True, help="folder or hub name of the model that will read them")
    add("--tokens", type=int, default=2048, help="of a context")
    add("--window", type=int, default=1024, help="of theta_A, in tokens of the prompt")
    add("--template", choices=["gateau", "chat"], default="gateau", help="as scoring.template")
    add("--per-kind", type=int, default=16)
    add("--samples", nargs="+", metavar="NEED=COUNT", help="numbers of samples by need: far, near, none")
    add("--follow-ups", type=int, default=0, metavar="N", help="ask each context more: up to N of its passages")
    add("--kinds", nargs="+", choices=list(ALL_KINDS), default=list(KINDS))
    add("--seed", type=int, default=0)
    add("--fold", choices=FOLDS, default="choose")
    options = parser.parse_args(given)
    sizes = {"tokens": options.tokens, "window": options.window, "template": options.template}
    room = Room(tokenizer=open_tokenizer(options.tokenizer), **sizes)
    needs = dict(each.split("=", 1) for each in options.samples or [])
    if {*needs} - {*NEEDS} or not all(count.isdecimal() for count in needs.values()):
        parser.error(f"--samples: expected {', '.join(f'{need}=COUNT' for need in NEEDS)}")
    counts = by_kind({need: int(count) for need, count in needs.items()}) if needs else options.per_kind
    more = {"per_kind": counts, "seed": options.seed, "kinds": options.kinds}
    more |= {"follow_ups": options.follow_ups}
    try:
        records = make_samples(read_questions(options.nq), room, fold=options.fold, **more)
    except ValueError as error:
        say(f"Error: {error}")
        return 1
    write_samples(records, options.out)
    say(f"{len(records)} samples, {sum(each['needs_far'] for each in records)} of which need far text: {options.out}")
    say(f"selection.ground_truth: [{', '.join(name for name in options.kinds if ALL_KINDS[name].needs_far)}]")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
