"""The kinds of samples of real text: what is asked, what is answered, and where the passages for it have to stand.

KINDS are those of the benchmark on real text. LENGTH_KINDS ask one, two, four or eight questions in one instruction,
and answer bare or in prose, so that a kind of each label has a response of each length.

Questions are reworded by a list of replacements: other words for the same thing, no paraphrase by a model.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from real_text_passages import Page, Paragraph, Passages, Places, Question, Room, Span, normalised, page_with, stands_in

SHORT_TOKENS = 3  # most tokens of a short answer
DISTRACTORS = 4  # at most, and as many passages as there is room for beyond the window
SUBJECTS = 6  # of a summary, likewise
_PASSAGE = 200  # tokens, a long one's
_DRAWS = 20  # of a follow-up that needs no text, until its page is not asked about
_EXCERPT = 24  # words
_SHORT_EXCERPT = 14  # words: eight of these fit into a window that also shows eight questions and answers
ANSWER_COUNTS = (1, 2, 4, 8)
_SENTENCES = (
    "The answer is {answer}.",
    "It is {answer}.",
    "That would be {answer}, as far as is known.",
    "The answer to the question “{question}” is {answer}.",
)
_OPENINGS = (
    "I have read the text from its beginning to its end, and this is what it has on the matter.",
    "Thank you for asking. Here is what I could gather for you.",
    "Let me go through what you asked, one thing after another.",
    "I looked this up with some care, and the short version is below.",
)
_CLOSINGS = (
    "I hope that this helps; please ask again if you would like to know more.",
    "That is all that I would say about it without looking at other sources.",
    "Please tell me if you need any of this in another form.",
    "There is more to be said about it, but these are the main points.",
)
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
_IN_TURN = (
    "As to the {ordinal} question, the answer is {answer}.",
    "The {ordinal} thing that you asked is easily said: {answer}.",
    "For the {ordinal} one, it is {answer}.",
)
REFUSALS = (
    "The text does not say.",
    "Nothing in the text answers this question.",
    "This cannot be told from the text.",
    "I could not find an answer to that in the text.",
)
# Each once, in this order; only what keeps the meaning in a question of this kind.
_REPLACEMENTS = tuple(
    (re.compile(rf"\b(?:{pattern})\b"), other)
    for pattern, other in (
        ("who is|who's|whos", "which person is"),
        ("who", "which person"),
        ("when did|when does|when do|when will", "at what time did"),
        ("when is|when was", "what was the date of"),
        ("where", "in which place"),
        ("how many", "what number of"),
        ("movie|film", "motion picture"),
        ("wrote|written by", "authored"),
        ("the song|song", "the piece of music"),
        ("play|plays|played", "portrayed"),
        ("sings|sang", "performs"),
        ("start|started|begin|began", "commence"),
        ("come out|came out", "first appear"),
        ("won|wins|win", "was victorious in"),
        ("biggest|largest", "greatest in size"),
        ("made|built", "produced"),
        ("located|situated", "to be found"),
        ("died|die", "pass away"),
        ("tv show|tv series|show", "television programme"),
        ("team", "side"),
        ("last time|last", "most recent time"),
        ("called", "named"),
        ("got|get", "obtain"),
        ("president", "head of state"),
        ("live|lives|lived", "have a home"),
        ("used", "employed"),
        ("mean|means", "signify"),
    )
)
CHATS = (
    ("How do I boil an egg?", "Put it into boiling water for eight minutes, then cool it under the tap and peel it."),
    ("Tell me a joke.", "Why did the bicycle fall over? Because it was two-tired."),
    ("Write a thank-you note to a neighbour.", "Dear neighbour, thank you for watering our plants. They are well!"),
    ("What is a good way to fall asleep?", "Keep the room dark and cool, and put the phone away an hour before."),
    ("Give me three names for a cat.", "How about Misty, Pepper, or Oliver? All are easy to call across a garden."),
    ("How can I learn to type faster?", "Practise for ten minutes every day without looking at the keys."),
    ("What should I cook tonight?", "A vegetable curry with rice is quick: onions, tomatoes, chickpeas, spices."),
    ("Write a haiku about rain.", "Soft rain on the roof, the gutters hum a slow tune, puddles hold the sky."),
    ("Is it better to run in the morning or the evening?", "Whichever you will keep doing. Both are good for you."),
    ("How do I say hello to a new colleague?", "Smile, say your name, ask for theirs, and offer to help."),
    ("Explain what a variable is in programming.", "It is a name for a value that a program can read and change."),
    ("I feel bored. Any ideas?", "You could go for a walk, call a friend, or start a book that you keep putting off."),
    ("How do I remove a stain from a shirt?", "Rinse it with cold water, rub in a little soap, then wash it as usual."),
    ("Write one sentence about the sea.", "The sea breathed in and out against the stones, as patient as ever."),
    ("What is a polite way to decline an invitation?", "Thank you so much for asking, but I am afraid I cannot come."),
    ("How often should I water a cactus?", "Every two or three weeks in summer, and hardly at all in winter."),
    ("Suggest a title for a story about a lost dog.", "The Long Way Home would suit it, or Waiting at the Gate."),
    ("How do I calm down before a test?", "Breathe slowly, read every question twice, and begin with the easy ones."),
    ("What is seven times eight?", "Seven times eight is fifty-six."),
    ("Correct this sentence: She go to school.", "She goes to school."),
    ("How do I keep bread fresh?", "Wrap it in a cloth or paper bag, and freeze what you will not eat in two days."),
    ("Give me a compliment.", "You ask good questions, and that is a rarer gift than knowing the answers."),
    ("Should I bring an umbrella?", "If the clouds are low and grey, yes; it weighs little and saves your shoes."),
    ("Write a slogan for a bakery.", "Fresh before you are awake."),
)  # fmt: skip


def reworded(question: str) -> tuple[str, int]:
    """Return the question, in lower case as in the data, with other words, and how many of the rules applied."""
    text, applied = question.lower().rstrip(" ?"), 0
    for pattern, other in _REPLACEMENTS:
        text, count = pattern.subn(other, text, count=1)
        applied += count > 0
    return f"I would like to know this: {text}?", applied


def first_sentence(passage: str, words: int) -> str:
    """Return the passage's first sentence, cut to so many words, with a full stop."""
    found = re.split(r"(?<=[a-z\d)][.!?])\s", passage, maxsplit=1)[0].split()
    return " ".join(found[:words]).rstrip(" .,;:") + "."


@dataclass(frozen=True, kw_only=True)
class Draft(Places):
    """A sample without its context.

    questions: those whose answers may stand in no other passage than theirs. gold: the character ranges of the response
    that the text decides; in far kinds only those that far text decides. title: of its page, where it has no question.
    """

    instruction: str
    response: str
    questions: Sequence[Question] = ()
    answers: Sequence[str] = ()
    gold: Sequence[Span] = ()
    title: str = ""

    @property
    def page(self) -> str:
        """Return the title of the first question's page, else `title`, else the instruction."""
        return self.questions[0].title if self.questions else self.title or self.instruction


@dataclass(frozen=True, kw_only=True)
class Desk:
    """The passages, room and random numbers that a kind's maker draws from."""

    passages: Passages
    room: Room
    rng: Random

    def question(self) -> Question:
        """Draw a question that can be asked."""
        return self.rng.choice(self.passages.askable)

    def beyond_window(self, most: int) -> int:
        """Return how many passages there is room for beyond the window, at most `most`."""
        return min(most, max(0, self.room.tokens - self.room.window) // _PASSAGE)


Maker = Callable[[Desk], Draft | None]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`needs_far`: whether what theta_A cannot see decides the response. make: None where a draw does not fit."""

    name: str
    needs_far: bool
    why: str
    make: Maker


def _evidence(question: Question) -> Paragraph:
    return Paragraph(text=question.shown, evidence=True)


def _excerpt(question: Question, length: int = _EXCERPT) -> Paragraph:
    """Return title and the passage's `length` words around the answer, which the passage must contain."""
    words = question.passage.split()
    before = len(question.passage[: question.passage.lower().index(question.answer.lower())].split())
    middle = before + len(question.answer.split()) // 2
    begin = max(0, min(middle - length // 2, len(words) - length))
    return Paragraph(text=f"{question.title}\n{' '.join(words[begin : begin + length])}", evidence=True)


def _sentence(desk: Desk, question: Question) -> tuple[str, Span]:
    """Return the answer in a sentence of one of four forms, and where it stands in it."""
    return _filled(desk.rng.choice(_SENTENCES), question)


def _filled(form: str, question: Question) -> tuple[str, Span]:
    before, after = (part.format(question=question.asked) for part in form.split("{answer}"))
    return f"{before}{question.answer}{after}", (len(before), len(before) + len(question.answer))


def _joined(parts: Sequence[tuple[str, Span]], between: str = " ") -> tuple[str, list[Span]]:
    """Return texts with `between` between them, and each one's range as a range of the whole."""
    spans, begin = [], 0
    for text, (start, end) in parts:
        spans.append((begin + start, begin + end))
        begin += len(text) + len(between)
    return between.join(text for text, _ in parts), spans


def _asked(questions: Sequence[Question], response: str, instruction: str = "", **more: Any) -> Draft:
    """Return a draft that asks these questions and answers them."""
    answers = [each.answer for each in questions]
    asked = instruction or " ".join(each.asked for each in questions)
    return Draft(instruction=asked, response=response, questions=questions, answers=answers, **more)


def _one(desk: Desk, *, far: bool = False, near: bool = False, short: bool = False) -> Draft | None:
    """Ask a question whose passage is far, near, both or nowhere; answer in a sentence or by the bare short answer."""
    question = desk.question()
    if short and desk.room.count(f" {question.answer}") > SHORT_TOKENS:
        return None
    passage = [_evidence(question)]
    response, span = (question.answer, (0, len(question.answer))) if short else _sentence(desk, question)
    return _asked([question], response, gold=[span], far=passage if far else (), near=passage if near else ())


def _two(desk: Desk, *, far: int) -> Draft | None:
    """Ask two questions, in either order: the passages of the first `far` are far, the others near.

    Near passages of two questions are excerpts, since the window also shows both questions and answers.
    """
    first, second = desk.rng.sample(desk.passages.askable, 2)
    if stands_in(first.aliases, second.words) or stands_in(second.aliases, first.words):
        return None
    if not far and any(each.answer.lower() not in each.passage.lower() for each in (first, second)):
        return None
    asked, passages = [first, second], [_evidence(each) if far else _excerpt(each) for each in (first, second)]
    desk.rng.shuffle(asked)
    response, spans = _joined([_sentence(desk, each) for each in asked])
    gold = [span for each, span in zip(asked, spans, strict=True) if far != 1 or each is first]
    return _asked(asked, response, gold=gold, far=passages[:far], near=passages[far:])


def _several(desk: Desk, *, count: int, far: int, near: int, prose: bool) -> Draft | None:
    """Ask `count` questions at once and answer them in turn, bare or in prose.

    Excerpts of the passages of the first `far` drawn are far, those of the next `near` are near; the others are
    nowhere. The order of the questions does not depend on that.
    """
    drawn = list[Question]()
    for question in desk.rng.sample(desk.passages.askable, min(8 * count, len(desk.passages.askable))):
        held = question.answer.lower() in _excerpt(question, _SHORT_EXCERPT).text.lower()
        if held and all(_apart(question, other) and _apart(other, question) for other in drawn):
            drawn.append(question)
        if len(drawn) == count:
            break
    else:
        return None
    passages = [_excerpt(each, _SHORT_EXCERPT) for each in drawn]
    asked = desk.rng.sample(drawn, count)
    bare = [(each.answer, (0, len(each.answer))) for each in asked]
    response, spans = _in_prose(desk, asked) if prose else _joined(bare, "; ")
    gold = [span for each, span in zip(asked, spans, strict=True) if not far or each in drawn[:far]]
    return _asked(asked, response, gold=gold, far=passages[:far], near=passages[far : far + near])


def _apart(question: Question, other: Question) -> bool:
    """Return whether no answer of a question stands in another one's text, answers or passage."""
    answers = "".join(other.aliases)
    return not any(stands_in(question.aliases, text) for text in (other.words, other.asked_words, answers))


def _in_prose(desk: Desk, asked: Sequence[Question]) -> tuple[str, list[Span]]:
    """Return the answers, a sentence each, between an opening and a closing sentence, and where they stand."""
    forms = [desk.rng.choice(_IN_TURN if len(asked) > 1 else _SENTENCES[:3]) for _ in asked]
    answers = [
        _filled(form.replace("{ordinal}", ordinal), each)
        for form, ordinal, each in zip(forms, _ORDINALS, asked, strict=False)
    ]
    opening, closing = ((desk.rng.choice(texts), (0, 0)) for texts in (_OPENINGS, _CLOSINGS))
    response, spans = _joined([opening, *answers, closing])
    return response, spans[1:-1]


def _hard(desk: Desk, *, far: bool) -> Draft | None:
    """Ask a question, its passage far or near, beside far ones that BM25 takes for the answer's."""
    question = desk.question()
    count = desk.beyond_window(DISTRACTORS)
    others = [Paragraph(text=each.shown) for each in desk.passages.hard_distractors(question, count)]
    own = [_evidence(question)]
    away = [*own, *others] if far else others
    desk.rng.shuffle(away)
    response, span = _sentence(desk, question)
    return _asked([question], response, gold=[span], far=away, near=() if far else own)


def _paraphrase(desk: Desk) -> Draft | None:
    """Ask a question reworded by two rules at least, of a passage without its title."""
    question = desk.question()
    text, applied = reworded(question.text)
    if applied < 2:
        return None
    passage = Paragraph(text=question.passage, evidence=True)
    response, span = _filled(_SENTENCES[0], question)
    return _asked([question], response, text, gold=[span], far=[passage])


def _two_hop(desk: Desk) -> Draft | None:
    """Ask a question about another one's answer, without its name."""
    if not desk.passages.hops:
        return None
    first, second, entity = desk.rng.choice(desk.passages.hops)
    lowered, name = second.text.lower(), entity.lower()
    if name not in lowered:
        return None
    veiled = lowered.replace(name, "X", 1).rstrip(" ?")
    passages = [_evidence(first), _evidence(second)]
    desk.rng.shuffle(passages)
    instruction = f"Let X be the answer to the question “{first.asked}” {veiled[0].upper()}{veiled[1:]}?"
    response, span = _filled(_SENTENCES[0], second)  # not a form that names X
    return _asked([second], response, instruction, gold=[span], far=passages)


def _summary(desk: Desk, *, far: bool) -> Draft | None:
    """Ask for a sentence on each of two to six passages, in their order.

    Far: the last passage is near, all others are far. Near: the window shows the first sentence of each.
    """
    count = max(2, desk.beyond_window(SUBJECTS - 1) + 1)
    chosen = desk.rng.sample([each for each in desk.passages.all if each.passage[0].isupper()], count)
    words = min(20, desk.room.window // (7 * count))  # so that the window shows as many sentences twice
    sentences = [first_sentence(each.passage, words) for each in chosen]
    heads = [f"On {each.title}: " for each in chosen]
    parts = [(head + said, (len(head), len(head + said))) for head, said in zip(heads, sentences, strict=True)]
    pairs = zip(chosen, sentences, strict=True)
    passages = [
        _evidence(each) if far else Paragraph(text=f"{each.title}\n{begun}", evidence=True) for each, begun in pairs
    ]
    instruction = f"Summarise the text from begin to end in {count} sentences, one for each of {count} subjects."
    if not far:
        instruction = f"Summarise the last {count} paragraphs of the text in {count} sentences, one for each subject."
    border = count - 1 if far else 0
    response, gold = _joined(parts)
    own = {"gold": gold[:border] if far else gold, "title": chosen[0].title}
    return _asked([], response, instruction, far=passages[:border], near=passages[border:], **own)


def _absent(desk: Desk) -> Draft | None:
    """Ask a question whose passage is nowhere; the response reports that."""
    question = desk.question()
    return Draft(instruction=question.asked, response=desk.rng.choice(REFUSALS), questions=[question])


def _chat(desk: Desk) -> Draft | None:
    half = [each for number, each in enumerate(CHATS) if number % 2 == (desk.passages.fold == "report")]
    instruction, response = desk.rng.choice(half)
    return Draft(instruction=instruction, response=response)


def _noise(desk: Desk) -> Draft | None:
    """Ask a question and answer it by words of a passage that is not there, in any order."""
    question, other = desk.rng.sample(desk.passages.askable, 2)
    words = other.passage.split()
    desk.rng.shuffle(words)
    return Draft(instruction=question.asked, response=" ".join(words[:16]), questions=[question, other])


def _continuation(desk: Desk) -> Draft | None:
    """End the context in the middle of a passage; the response goes on."""
    question = desk.rng.choice(desk.passages.all)
    words = question.passage.split()
    if len(words) < 40:
        return None
    middle = len(words) // 2
    begun = Paragraph(text=f"{question.title}\n{' '.join(words[:middle])}", evidence=True)
    response = " ".join(words[middle : middle + 40])
    return _asked([], response, "Continue the text where it ends.", last=begun, title=question.title)


_ALL: tuple[tuple[str, bool, str, Maker], ...] = (
    ("far_one", True, "one far passage answers", partial(_one, far=True)),
    ("far_two", True, "two far passages answer a question each", partial(_two, far=2)),
    ("far_hard", True, "a far passage answers, beside far ones that look alike", partial(_hard, far=True)),
    ("far_paraphrase", True, "a far passage answers a question in other words", _paraphrase),
    ("far_two_hop", True, "a far passage names what another far passage is asked about", _two_hop),
    ("far_summary", True, "passages from all of the text are summed up", partial(_summary, far=True)),
    ("far_short", True, "a far passage answers in one to three tokens", partial(_one, far=True, short=True)),
    ("far_and_near", True, "one question is answered far, another one near", partial(_two, far=1)),
    ("near", False, "a near passage answers", partial(_one, near=True)),
    ("near_short", False, "a near passage answers in one to three tokens", partial(_one, near=True, short=True)),
    (
        "near_repeated_far",
        False,
        "a near passage answers, and is far away, too",
        partial(_one, far=True, near=True),
    ),
    ("near_hard", False, "a near passage answers, and far ones look alike", partial(_hard, far=False)),
    ("near_two", False, "two near passages answer a question each", partial(_two, far=0)),
    ("near_summary", False, "near passages are summed up", partial(_summary, far=False)),
    ("absent", False, "no passage answers, and the response says so", _absent),
    ("closed_book", False, "no passage answers, and the response is right all the same", _one),
    ("chat", False, "the question has nothing to do with the text", _chat),
    ("noise", False, "the response is words in any order", _noise),
    ("continuation", False, "the text goes on where it ends", _continuation),
)
KINDS = {name: Kind(name=name, needs_far=far, why=why, make=make) for name, far, why, make in _ALL}
FAR_KINDS = tuple(name for name, kind in KINDS.items() if kind.needs_far)
NEEDS = {
    "far": FAR_KINDS,
    "near": (*(name for name in KINDS if name.startswith("near")), "continuation"),
    "none": ("absent", "closed_book", "chat", "noise"),
}
"""The kinds by what their responses need: far text, near text, or no text."""


def _length_kinds() -> Iterator[Kind]:
    """Yield the kinds of LENGTH_KINDS: places of the passages, number of answers, and form of the response."""
    places = {
        "far": ("all passages are far", 1.0, 0.0),
        "mixed": ("half of the passages are far, half near", 0.5, 0.5),
        "near": ("all passages are near", 0.0, 1.0),
        "nowhere": ("no passage is in the context, and the answers are right all the same", 0.0, 0.0),
    }
    for place, (why, far, near) in places.items():
        for count in ANSWER_COUNTS:
            for form in ("bare", "prose"):
                if place == "mixed" and count == 1:
                    continue
                shares = {"far": round(far * count), "near": round(near * count)}
                make = partial(_several, count=count, **shares, prose=form == "prose")
                yield Kind(name=f"{place}_{count}_{form}", needs_far=far > 0, why=why, make=make)


LENGTH_KINDS = {kind.name: kind for kind in _length_kinds()}
ALL_KINDS = KINDS | LENGTH_KINDS


def fillers(desk: Desk, draft: Draft) -> list[Question]:
    """Return passages that may stand beside the draft's, in any order: of other pages, without an answer to it."""
    lines = {line for each in draft.paragraphs for line in each.text.split("\n")}
    aliases = [alias for each in draft.questions for alias in each.aliases]
    titles = {each.title for each in draft.questions}
    free = [
        each
        for each in desk.passages.all
        if each.title not in titles | lines and each.passage not in lines and not stands_in(aliases, each.words)
    ]
    desk.rng.shuffle(free)
    return list({each.passage: each for each in free}.values())


def asked_next(page: Page, desk: Desk, most: int, asked: set[str]) -> Iterator[tuple[Kind, Draft, Page]]:
    """Yield other samples with a context: up to `most` questions of its passages, then one sample of each kind that
    needs no text.

    The context holds the whole passage, far or near, and the answer nowhere else. No question is about a page whose
    title is in `asked`, and the titles of the new questions are added to it.
    """
    others = [each for each in desk.passages.askable if each.shown in page.context]
    desk.rng.shuffle(others)
    passages = (_of_passage(each, page, desk) for each in others if each.title not in asked)
    for kind, more, own in islice(filter(None, passages), most):
        asked.add(more.page)
        yield kind, more, own
    for name in NEEDS["none"] if most else ():
        drafts = filter(None, (KINDS[name].make(desk) for _ in range(_DRAWS)))
        drawn = next((each for each in drafts if not each.questions or each.page not in asked), None)
        if drawn and not has_strays(drawn, own := replace(page, evidence=())):
            asked |= {drawn.page} if drawn.questions else set()
            yield KINDS[name], drawn, own


def _of_passage(question: Question, page: Page, desk: Desk) -> tuple[Kind, Draft, Page] | None:
    """Return a sample that asks for the answer of a passage in a context; None where the passage is at the border."""
    response, span = _sentence(desk, question)
    begin = page.context.index(question.shown)
    visible = desk.room.visible(question.asked, response)
    own = page_with(page.context, [(begin, begin + len(question.shown))], desk.room, visible)
    made, place = _asked([question], response, gold=[span]), own.place(own.evidence[0])
    if place == "border" or has_strays(made, own):
        return None
    return KINDS["far_one" if place == "far" else "near"], made, own


def has_strays(draft: Draft, page: Page) -> bool:
    """Return whether an answer stands in the context outside the evidence."""
    rest, end = [], 0
    for begin, stop in page.evidence:
        rest.append(page.context[end:begin])
        end = stop
    outside = normalised(" . ".join([*rest, page.context[end:]]))
    return any(stands_in(each.aliases, outside) for each in draft.questions)
