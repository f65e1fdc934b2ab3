"""Labelled kinds of samples in the demo's language: which responses need what theta_A cannot see?

The set has the demo's five kinds (`gateau_dagster/features/demo/prepare.py`) as its base. The kinds here are of three
groups:

- controlled: one thing varies, as the number of facts, the distance, distractors, repetition or the response's words;
- harder: near facts with something misleading far away, and far facts among other things;
- breaking: built to break `far_gain`, which asks what the best single far segment adds.

The contexts of all kinds have the same lengths and, unless that is what a kind varies, the same number of facts that
nobody asks for, so that neither tells the kinds apart.

A few kinds are beyond the embedded pair, whose training holds single facts of one form only: theta_B gives the value of
`two_hop` a probability of 0.00, that of `order_coded` 0.16 (0.12 is a guess), that of `ordered_values` 0.25. Facts of
the other kinds get 0.97 to 0.99, unless others contradict them: `paraphrased` and `across_border` are no harder here,
since a value belongs to one attribute. No score that comes from this pair can find what the pair cannot read; the label
is what the response needs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Literal, TypeAlias

import numpy as np

from gateau_dagster.features.demo import language
from gateau_dagster.features.demo.language import Fact, Words
from gateau_dagster.features.demo.prepare import DISTRACTORS, FAR_KINDS, FAR_SENTENCES, NEAR_SENTENCES
from gateau_dagster.features.demo.prepare import KINDS as BASE_KINDS

SEGMENT = 128  # tokens; a kind that depends on borders holds for every segment length that divides it
APART = 17  # sentences between places of which no segment of SEGMENT tokens may hold two


# Least and most filler sentences, of eight words each, of a context. The least leaves room for two far places that are
# APART; the most, with all statements, the instruction and the response, is below the 2,048 tokens of theta_B.
LEAST, MOST = FAR_SENTENCES + APART, 168


@dataclass(kw_only=True)
class Page:
    """A context in the making: `sentence_count` sentences of filler, and statements at known places.

    What is stated in slot i is before sentence i, in the last slot at the end.
    """

    rng: np.random.Generator
    sentence_count: int
    filler: Iterator[Words]
    facts: list[Fact]  # of different attributes, not stated yet
    slots: dict[int, list[Words]] = field(default_factory=dict)

    @classmethod
    def blank(cls, rng: np.random.Generator) -> "Page":
        """Return a page of ordinary filler, with all 32 attributes unused."""
        count = int(rng.integers(LEAST, MOST + 1))
        return cls(rng=rng, sentence_count=count, filler=language.sentences(rng), facts=language.random_facts(rng, 32))

    def take(self, count: int) -> list[Fact]:
        """Return facts whose attributes nothing else uses."""
        taken, self.facts = self.facts[:count], self.facts[count:]
        assert len(taken) == count, "the language has 32 attributes"
        return taken

    def slot(self, *, far: bool) -> int:
        """Return a random slot among the last sentences, which theta_A sees, or a far one.

        A far slot is at least 384 tokens before the end: neither in theta_A's window nor in a segment that reaches it.
        """
        last, near = self.sentence_count, self.sentence_count - NEAR_SENTENCES
        return int(self.rng.integers(last - FAR_SENTENCES + 1) if far else self.rng.integers(near, last + 1))

    def far_slots(self) -> tuple[int, int]:
        """Return two far slots, the earlier first, of which no segment of SEGMENT tokens holds both."""
        last = self.sentence_count - FAR_SENTENCES
        first = int(self.rng.integers(last - APART + 1))
        return first, int(self.rng.integers(first + APART, last + 1))

    def state(self, slot: int, statement: Words) -> None:
        """Append a statement to the slot."""
        assert 0 <= slot <= self.sentence_count
        self.slots.setdefault(slot, []).append(statement)

    def state_facts(self, facts: list[Fact], *, far: bool) -> None:
        """State each fact in a separate slot, far or near."""
        for fact in facts:
            self.state(self.slot(far=far), language.fact_words(fact))

    def distract(self, count: int | None = None) -> None:
        """State `count` facts that nobody asks for, anywhere; default: as many as in the demo's samples."""
        wanted = int(self.rng.integers(DISTRACTORS[0], DISTRACTORS[1] + 1)) if count is None else count
        for fact in self.take(wanted):
            self.state(int(self.rng.integers(1, self.sentence_count + 1)), language.fact_words(fact))

    def units(self) -> list[Words]:
        """Return sentences and statements in reading order. Consumes the filler: call it once."""
        written: list[Words] = []
        for slot, sentence in enumerate(islice(self.filler, self.sentence_count)):
            written += [*self.slots.get(slot, ()), sentence]
        return written + self.slots.get(self.sentence_count, [])

    def text(self) -> Words:
        """Return the words of the context."""
        return joined(self.units())

    def text_with(self, statement: Words, *, distance: int) -> Words:
        """Return the context with a statement that begins `distance` tokens before its end, or up to 7 more."""
        units = self.units()
        place, behind = len(units), len(statement)
        while behind < distance:
            place -= 1
            behind += len(units[place])
        return joined([*units[:place], statement, *units[place:]])

    def text_across(self, statement: Words, *, first: int) -> Words:
        """Return the context with a far statement of which `first` words end a segment and the others begin the next.

        The context's first sentence loses up to 7 words, as that of a document cut out of a longer one may.
        """
        units = self.units()
        starts = np.cumsum([0, *(len(unit) for unit in units)])
        last = (starts[-1] - FAR_SENTENCES * 8) // SEGMENT
        begin = SEGMENT * int(self.rng.integers(1, last + 1)) - first
        place = int(np.searchsorted(starts, begin))  # the first unit that begins there or behind
        surplus = int(starts[place]) - begin
        assert surplus < len(units[0])
        return joined([units[0][surplus:], *units[1:place], statement, *units[place:]])


def joined(units: list[Words]) -> Words:
    """Return all words, in order."""
    return [word for unit in units for word in unit]


Group = Literal["controlled", "harder", "breaking"]
Parts: TypeAlias = tuple[Words, Words, Words]  # context, instruction, response
Maker: TypeAlias = Callable[[Page], Parts]

_EVERY = 12  # sentences between the copies of a fact that is stated everywhere
_BLOCK = 3  # sentences that a repetitive context repeats
_WRONG = 3  # statements of other values
_TALE = 4  # sentences around a diluted answer
_ALIKE = 0.15  # of the sentences are about the noun that the response is about


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A labelled kind of sample.

    Attributes:
        needs_far_context: whether what theta_A cannot see (all but the last 256 tokens) decides the response.
        within_reach: whether the embedded pair's theta_B reads the evidence (measured).
    """

    name: str
    group: Group
    needs_far_context: bool
    why: str
    make: Maker
    within_reach: bool


def _recall(page: Page, facts: list[Fact], distractors: int | None = None) -> Parts:
    """Return the question for these facts, among distractors, and its answer in the order of asking."""
    page.distract(distractors)
    return page.text(), language.recall_instruction(facts), language.recall_response(facts)


def _other_values(page: Page, fact: Fact, count: int) -> list[Fact]:
    others = [value for value in language.VALUES[fact.attribute] if value != fact.value]
    return [Fact(attribute=fact.attribute, value=others[index]) for index in page.rng.permutation(len(others))[:count]]


def _facts(page: Page, count: int, *, far: bool, distractors: int | None = None) -> Parts:
    facts = page.take(count)
    page.state_facts(facts, far=far)
    return _recall(page, facts, distractors)


def _at(page: Page, distance: int) -> Parts:
    facts = page.take(1)
    page.distract()
    context = page.text_with(language.fact_words(facts[0]), distance=distance)
    return context, language.recall_instruction(facts), language.recall_response(facts)


def _at_start(page: Page) -> Parts:
    facts = page.take(1)
    page.state(0, language.fact_words(facts[0]))
    return _recall(page, facts)


def _in_instruction(page: Page) -> Parts:
    facts = page.take(1)
    context, instruction, response = _recall(page, facts)
    return context, [*language.fact_words(facts[0]), *instruction], response


def _absent(page: Page) -> Parts:
    return _recall(page, page.take(int(page.rng.integers(1, 4))))


def _long_tale(page: Page) -> Parts:
    page.distract()
    noun = language.pick(page.rng, language.NOUNS)
    return page.text(), language.tell_instruction(noun), language.tell_response(page.rng, noun, 4)


def _rare_words(page: Page) -> Parts:
    """Make sentences in which every second word that carries meaning is a value that is not in the context."""
    page.distract()
    noun = language.pick(page.rng, language.NOUNS)
    response = language.tell_response(page.rng, noun, 2)
    carrying = [place for place, word in enumerate(response) if word in language.FILLER_WORDS][1::2]
    for place, fact in zip(carrying, page.take(len(carrying)), strict=True):
        response[place] = fact.value
    return page.text(), language.tell_instruction(noun), response


def _repeat_block(page: Page) -> list[Words]:
    """Repeat a block of sentences as the page's filler, and return the block."""
    block = list(islice(language.sentences(page.rng), _BLOCK))
    page.filler = cycle(block)
    return block


def _repetitive(page: Page) -> Parts:
    block = _repeat_block(page)
    page.distract()
    chosen = block[int(page.rng.integers(_BLOCK))]
    return page.text(), language.tell_instruction(chosen[1]), list(chosen)


def _repetitive_far(page: Page) -> Parts:
    _repeat_block(page)
    return _facts(page, 1, far=True)


def _everywhere(page: Page) -> Parts:
    facts = page.take(1)
    for slot in range(page.sentence_count - 2, -1, -_EVERY):
        page.state(slot, language.fact_words(facts[0]))
    return _recall(page, facts)


def _ordered(page: Page, *, stated: int, asked: int, far: bool) -> Parts:
    """Ask for the first `asked` of `stated` values of one attribute, in the order of their statement."""
    assert 1 <= asked <= stated <= 8
    (fact,) = page.take(1)
    values = language.VALUES[fact.attribute]
    facts = [Fact(attribute=fact.attribute, value=values[index]) for index in page.rng.permutation(8)[:stated]]
    for slot, each in zip(sorted(page.slot(far=far) for _ in facts), facts, strict=True):
        page.state(slot, language.fact_words(each))
    return _recall(page, facts[:asked])


def _near_repeated_far(page: Page) -> Parts:
    facts = page.take(1)
    page.state_facts(facts, far=False)
    page.state_facts(facts, far=True)
    return _recall(page, facts)


def _near_wrong_far(page: Page) -> Parts:
    facts = page.take(1)
    page.state_facts(facts, far=False)
    page.state_facts(_other_values(page, facts[0], _WRONG), far=True)
    return _recall(page, facts)


def _noise(page: Page, *, far: bool) -> Parts:
    facts = page.take(int(page.rng.integers(1, 3)))
    page.state_facts(facts, far=far)
    page.distract()
    response = [*language.recall_response(facts), *language.noisy_response(page.rng, language.SENTENCE_WORDS)]
    return page.text(), language.recall_instruction(facts), response


def _far_copies(page: Page) -> Parts:
    facts = page.take(1)
    for slot in page.far_slots():
        page.state(slot, language.fact_words(facts[0]))
    return _recall(page, facts)


def _stale_values(page: Page) -> Parts:
    (fact,) = page.take(1)
    (stale,) = _other_values(page, fact, 1)
    for slot, each in zip(page.far_slots(), (stale, fact), strict=True):
        page.state(slot, language.fact_words(each))
    return _recall(page, [fact])


def _dilution(page: Page, *, far: bool) -> Parts:
    facts = page.take(1)
    page.state_facts(facts, far=far)
    page.distract()
    noun = language.pick(page.rng, language.NOUNS)
    instruction = [*language.tell_instruction(noun), *language.recall_instruction(facts)]
    return page.text(), instruction, [*language.tell_response(page.rng, noun, _TALE), *language.recall_response(facts)]


def _two_hop(page: Page, *, far: bool) -> Parts:
    """State `note A B .` and `note B VALUE .`: the value of A is that of B."""
    asked, known = page.take(2)
    places = page.far_slots() if far else sorted((page.slot(far=False), page.slot(far=False)))
    statements = [["note", asked.attribute, known.attribute, "."], language.fact_words(known)]
    for slot, index in zip(places, page.rng.permutation(2), strict=True):
        page.state(slot, statements[index])
    return _recall(page, [Fact(attribute=asked.attribute, value=known.value)])


def _paraphrased(page: Page, *, far: bool) -> Parts:
    """State `the VALUE of the ATTRIBUTE .`, a form in which the model has not seen facts."""
    (fact,) = page.take(1)
    page.state(page.slot(far=far), ["the", fact.value, "of", "the", fact.attribute, "."])
    return _recall(page, [fact])


def _across_border(page: Page) -> Parts:
    """End a segment with `note ATTRIBUTE` and begin the next with `VALUE .`: neither has the fact alone."""
    facts = page.take(1)
    page.distract()
    return (
        page.text_across(language.fact_words(facts[0]), first=2),
        language.recall_instruction(facts),
        language.recall_response(facts),
    )


def _contradicted(page: Page) -> Parts:
    """Answer with a wrong value: the far context states another."""
    facts = page.take(1)
    wrong = _other_values(page, facts[0], 1)
    page.state_facts(facts, far=True)
    return _recall(page, wrong)


def _alike(page: Page, noun: str) -> Iterator[Words]:
    """Yield filler in which sentences about `noun` recur."""
    ordinary = language.sentences(page.rng)
    while True:
        yield next(language.sentences(page.rng, noun)) if page.rng.random() < _ALIKE else next(ordinary)


def _look_alikes(page: Page) -> Parts:
    noun = language.pick(page.rng, language.NOUNS)
    page.filler = _alike(page, noun)
    page.distract()
    count = int(page.rng.integers(1, 3))
    return page.text(), language.tell_instruction(noun), language.tell_response(page.rng, noun, count)


def _far_look_alikes(page: Page) -> Parts:
    page.filler = _alike(page, language.pick(page.rng, language.NOUNS))
    return _facts(page, 1, far=True)


_FAR = "The values are only where theta_A cannot see them."
_NEAR = "The values are in the last sentences of the context."
_Rows: TypeAlias = tuple[tuple[str, bool, str, Maker], ...]  # name, whether it needs far context, why, maker
_CONTROLLED: _Rows = (
    *((f"far_count_{count}", True, _FAR, partial(_facts, count=count, far=True)) for count in (1, 3, 6)),
    *((f"near_count_{count}", False, _NEAR, partial(_facts, count=count, far=False)) for count in (1, 3, 6)),
    ("near_at_100", False, "The value is 100 tokens before the end, within theta_A's 256.", partial(_at, distance=100)),
    ("near_at_190", False, "The value is 190 tokens before the end, within theta_A's 256.", partial(_at, distance=190)),
    (
        "far_at_280",
        True,
        "The value is just out of theta_A's sight, in a segment that theta_A sees a part of.",
        partial(_at, distance=280),
    ),
    ("far_at_450", True, _FAR, partial(_at, distance=450)),
    ("far_at_start", True, "The value is the first thing in the context.", _at_start),
    ("far_among_0", True, _FAR, partial(_facts, count=1, far=True, distractors=0)),
    ("far_among_24", True, _FAR, partial(_facts, count=1, far=True, distractors=24)),
    ("near_among_0", False, _NEAR, partial(_facts, count=1, far=False, distractors=0)),
    ("near_among_24", False, _NEAR, partial(_facts, count=1, far=False, distractors=24)),
    ("local_only", False, "The instruction itself states what it asks for.", _in_instruction),
    ("absent", False, "What is asked for is nowhere: no context helps.", _absent),
    ("long_tale", False, "Four sentences of the language about a noun; the context is not needed.", _long_tale),
    ("rare_words", False, "The response's rare words are nowhere in the context.", _rare_words),
    ("repetitive", False, "The response repeats a sentence that every part of the context repeats.", _repetitive),
    ("repetitive_far", True, "The filler repeats itself, but the value is only far away.", _repetitive_far),
    ("stated_everywhere", False, "The fact is in every part of the context, the last included.", _everywhere),
    (
        "ordered_values",
        True,
        "Three values of one attribute, all far, are asked for in the order of their statement.",
        partial(_ordered, stated=3, asked=3, far=True),
    ),
    (
        "ordered_values_near",
        False,
        "Three values of one attribute in the last sentences, asked for in the order of their statement.",
        partial(_ordered, stated=3, asked=3, far=False),
    ),
)
_HARDER: _Rows = (
    ("near_repeated_far", False, "The fact is far away, too, but the near copy is enough.", _near_repeated_far),
    ("near_wrong_far", False, "The near value is asked for; the far context states others.", _near_wrong_far),
    ("near_noise", False, "A near fact, then random words that nothing foretells.", partial(_noise, far=False)),
    ("near_dilution", False, "A near fact behind four sentences that need no context.", partial(_dilution, far=False)),
    ("far_copies", True, "The fact is stated twice, both times far away.", _far_copies),
    ("stale_values", True, "Two far values of one attribute; the later one is asked for.", _stale_values),
    ("dilution", True, "A far fact behind four sentences that need no context.", partial(_dilution, far=True)),
    ("far_noise", True, "Far facts, then random words that nothing foretells.", partial(_noise, far=True)),
)
_BREAKING: _Rows = (
    ("two_hop", True, "Two far facts, in different segments, give the value together.", partial(_two_hop, far=True)),
    ("two_hop_near", False, "Both facts are in the last sentences.", partial(_two_hop, far=False)),
    ("paraphrased", True, "The far context states the fact in another form.", partial(_paraphrased, far=True)),
    ("paraphrased_near", False, "The last sentences state the fact in another form.", partial(_paraphrased, far=False)),
    (
        "order_coded",
        True,
        "The far context states all values; the first is asked for.",
        partial(_ordered, stated=8, asked=1, far=True),
    ),
    (
        "order_coded_near",
        False,
        "The last sentences state all values; the first is asked for.",
        partial(_ordered, stated=8, asked=1, far=False),
    ),
    ("across_border", True, "A far fact that a segment border cuts in two.", _across_border),
    ("contradicted", False, "The response's value is nowhere; the far context states another.", _contradicted),
    ("look_alikes", False, "Chance repetitions of what the response says; it needs no context.", _look_alikes),
    ("far_look_alikes", True, "Contexts as those of look_alikes, but a far value is asked for.", _far_look_alikes),
)
_GROUPS: dict[Group, _Rows] = {"controlled": _CONTROLLED, "harder": _HARDER, "breaking": _BREAKING}
_BEYOND_REACH = {f"{name}{place}" for name in ("ordered_values", "two_hop", "order_coded") for place in ("", "_near")}
KINDS = {
    name: Kind(
        name=name, group=group, needs_far_context=needs, why=why, make=make, within_reach=name not in _BEYOND_REACH
    )
    for group, rows in _GROUPS.items()
    for name, needs, why, make in rows
}

_SET = 2  # part of the seed: the reported figures are of the samples that this number draws


def needs_far_context(source: str) -> bool:
    """Return the label of a kind of this set or of the demo's. Raises KeyError for another kind."""
    return source in FAR_KINDS if source in BASE_KINDS else KINDS[source].needs_far_context


def groups() -> dict[str, list[str]]:
    """Return the kinds by the group whose figures are reported; the last two join several groups."""
    within = [name for name, kind in KINDS.items() if kind.within_reach]
    named = {group: [name for name, *_ in rows] for group, rows in _GROUPS.items()}
    return {"base": list(BASE_KINDS), **named, "within reach": [*BASE_KINDS, *within], "all": [*BASE_KINDS, *KINDS]}


def counterparts() -> dict[str, list[str]]:
    """Return pairs of kinds that differ only in the place of the facts: does a score see that, or only hardness?"""
    return {f"{name} or near": [name, f"{name}_near"] for name in KINDS if f"{name}_near" in KINDS}


def harder_samples(count: int, seed: int, *, kinds: Sequence[str] | None = None) -> list[dict[str, str]]:
    """Return `count` records with id, source (the kind), context, instruction and response; the kinds take turns.

    Seed, index and kind decide a record: a larger set begins with the smaller one.

    Args:
        kinds: names from KINDS; default: all.

    Raises:
        ValueError: a kind is unknown.
    """
    names = list(KINDS) if kinds is None else list(kinds)
    unknown = sorted(set(names) - set(KINDS))
    if unknown or not names:
        raise ValueError(f"no kinds {', '.join(unknown)}: they are {', '.join(KINDS)}")
    return [_sample(index, seed, KINDS[names[index % len(names)]]) for index in range(count)]


def _sample(index: int, seed: int, kind: Kind) -> dict[str, str]:
    rng = np.random.default_rng((seed, index, _SET))
    parts = kind.make(Page.blank(rng))
    texts = dict(zip(("context", "instruction", "response"), map(" ".join, parts), strict=True))
    return {"id": f"medium-{seed}-{index:05d}", "source": kind.name, **texts}
