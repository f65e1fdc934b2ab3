"""Build training rows of the pair: a document in the scoring prompt's form, then many instructions and responses."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gateau_dagster.demo.language import (
    ATTRIBUTES,
    BOS,
    FACT_WORDS,
    NOUNS,
    SENTENCE_WORDS,
    VALUES,
    WORD_IDS,
    Fact,
    Words,
    document,
    noisy_response,
    pick,
    random_facts,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)

ANSWER_WEIGHT, RESPONSE_WEIGHT, CONTEXT_WEIGHT, INSTRUCTION_WEIGHT = 1.0, 0.3, 0.2, 0.03
MOST_ASKED = 3  # facts of one query
RECALL_SHARE = 0.85  # share of the queries; the others need no context
ABSENT_SHARE = 0.05  # share of recalled facts not in the context: the model learns what it cannot know
NOISE_SHARE = 0.15  # share of the responses without need of context that are random words
_ANSWER_WORDS = frozenset([*ATTRIBUTES, *(value for values in VALUES.values() for value in values)])


@dataclass(frozen=True, kw_only=True)
class LanguageRow:
    """Words and the loss weight of each as a target."""

    words: Words = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, words: Words, weight: float) -> None:
        """Append words of one weight."""
        self.words.extend(words)
        self.weights.extend([weight] * len(words))


def _add_query(row: LanguageRow, rng: np.random.Generator, facts: list[Fact]) -> None:
    if rng.random() < RECALL_SHARE:
        known = {fact.attribute: fact for fact in facts}
        count = min(len(facts), int(rng.integers(1, MOST_ASKED + 1)))
        asked = [facts[index] for index in rng.permutation(len(facts))[:count]]
        if rng.random() < ABSENT_SHARE:
            name = pick(rng, [attribute for attribute in ATTRIBUTES if attribute not in known] or list(ATTRIBUTES))
            asked[0] = Fact(attribute=name, value=pick(rng, VALUES[name]))
        instruction, response = recall_instruction(asked), recall_response(asked)
    else:
        noun, count = pick(rng, NOUNS), int(rng.integers(1, 3))
        noisy = rng.random() < NOISE_SHARE
        instruction = tell_instruction(noun)
        response = noisy_response(rng, count * SENTENCE_WORDS) if noisy else tell_response(rng, noun, count)
    row.add(["###", "Instruction:", *instruction, "###", "Response:"], INSTRUCTION_WEIGHT)
    for word in response:
        row.add([word], ANSWER_WEIGHT if word in _ANSWER_WORDS else RESPONSE_WEIGHT)


def training_row(rng: np.random.Generator, *, length: int, context: int, fact_count: int) -> LanguageRow:
    """Return one row of `length` words: a document of about `context` words with `fact_count` facts, then queries."""
    row = LanguageRow()
    row.add([BOS], 0.0)
    row.add(["###", "Input:"], INSTRUCTION_WEIGHT)
    facts = random_facts(rng, fact_count)
    sentence_count = max(0, context - FACT_WORDS * fact_count) // SENTENCE_WORDS
    places: dict[int, list[Fact]] = {}
    for fact in facts:
        places.setdefault(int(rng.integers(sentence_count + 1)), []).append(fact)
    row.add(document(rng, sentence_count, places), CONTEXT_WEIGHT)
    while len(row.words) < length:
        _add_query(row, rng, facts)
    return LanguageRow(words=row.words[:length], weights=row.weights[:length])


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rows of equal length: `ids` (rows, length) int64 and `weights` (rows, length) float32, of each id as a target."""

    ids: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Stage:
    """`steps` batches that cycle through `shapes` (rows, length)."""

    name: str
    steps: int
    shapes: tuple[tuple[int, int], ...]
    facts: tuple[int, int]  # least and most facts of a row
    filler: bool  # False: the context is facts only


def batches(stage: Stage, rng: np.random.Generator) -> Iterator[Batch]:
    """Yield the stage's batches, one per step."""
    for step in range(stage.steps):
        rows, length = stage.shapes[step % len(stage.shapes)]
        made = []
        for _ in range(rows):
            fact_count = min(int(rng.integers(stage.facts[0], stage.facts[1] + 1)), length // 12)
            queries = min(length // 2, int(rng.integers(32, 256)))
            context = length - queries if stage.filler else FACT_WORDS * fact_count
            made.append(training_row(rng, length=length, context=context, fact_count=fact_count))
        yield Batch(
            ids=np.array([[WORD_IDS[word] for word in row.words] for row in made], dtype=np.int64),
            weights=np.array([row.weights for row in made], dtype=np.float32),
        )
