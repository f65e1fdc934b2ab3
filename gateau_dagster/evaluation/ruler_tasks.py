"""RULER's synthetic tasks (Hsieh et al. 2024): needles, chains of variables, most common words; of any size.

Each maker fills the published template from a random generator, so that a sample is what `rng`, size and arguments say.
"""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from gateau_dagster.evaluation.ruler_documents import Corpus

_DEPTHS = [round(place * 100 / 39) for place in range(40)]
"""Per cent of the text before a needle in essays."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words of the package wonderwords, sorted."""

    nouns: Sequence[str]
    adjectives: Sequence[str]
    verbs: Sequence[str]

    @property
    def all(self) -> list[str]:
        """Each word once."""
        return sorted({*self.nouns, *self.adjectives, *self.verbs})


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as published. kind: of its maker. template, prefix: with their placeholders; the prefix begins the answer.

    arguments: of synthetic.yaml.
    """

    name: str
    kind: str
    template: str
    prefix: str
    answer_tokens: int
    arguments: Mapping[str, Any]

    @classmethod
    def published(cls, name: str, described: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> Task:
        """described: its entry of synthetic.yaml. kinds: those of constants.py. Raises KeyError, TypeError."""
        kind = kinds[described["task"]]
        return cls(
            name=name,
            kind=described["task"],
            template=kind["template"],
            prefix=kind["answer_prefix"],
            answer_tokens=kind["tokens_to_generate"],
            arguments=described["args"],
        )


@dataclass(frozen=True, kw_only=True)
class Material:
    """What tasks are made of. needle: with {type_needle_v}, {key} and {value}; noise: sentences that say nothing.

    sentences: of the essays, for the needles that lie in them. longest: tokens of the prompts, below 4,096 of which the
    lists of words have fewer repetitions. example: repetitions of the noise in the example of chains.
    corpora: of the questions over documents, by name. document: how one of them is shown. number: of the sample, which
    says which of these questions is asked.
    """

    needle: str
    noise: str
    words: Words
    sentences: Sequence[str] = ()
    longest: int = 4096
    example: int = 5
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    document: str = ""
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Made:
    """A sample: what is asked, how the answer begins, and what it has to hold."""

    text: str
    prefix: str
    answers: tuple[str, ...]


Maker = Callable[[Task, Material, random.Random, int], Made]


def needles(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """Needles in `size` repetitions of the noise, in `size` other needles, or among `size` sentences of essays."""
    kinds, given = (task.arguments["type_needle_k"], task.arguments["type_needle_v"]), task.arguments
    asked, each = given["num_needle_q"], given["num_needle_v"]
    pairs = [
        (
            _random(kinds[0], material.words, rng),
            [_random(kinds[1], material.words, rng) for _ in range(each)],
        )
        for _ in range(max(given["num_needle_k"], asked))
    ]

    def said(key: str, value: str) -> str:
        return material.needle.format(type_needle_v=kinds[1], key=key, value=value)

    hidden = [said(key, value) for key, values in pairs for value in values]
    rng.shuffle(hidden)
    if given["type_haystack"] == "essay":
        context = _among_sentences(hidden, material.sentences, rng, size)
    else:
        hay = [material.noise] * size
        if given["type_haystack"] == "needle":
            hay = [said(*(_random(kind, material.words, rng) for kind in kinds)) for _ in range(size)]
        for place in sorted(rng.sample(range(size), len(hidden)), reverse=True):
            hay.insert(place, hidden.pop())
        context = "\n".join(hay)
    chosen = rng.sample(pairs, asked)
    keys = [key for key, _ in chosen]
    query = ", ".join(keys[:-1]) + ", and " + keys[-1] if len(keys) > 1 else keys[0]
    one = asked * each == 1
    fill = {"type_needle_v": kinds[1][:-1] if one else kinds[1], "context": context, "query": query}
    template, prefix = (_singular(text) if one else text for text in (task.template, task.prefix))
    answers = tuple(value for _, values in chosen for value in values)
    return Made(text=template.format(**fill), prefix=prefix.format(**fill), answers=answers)


def _random(kind: str, words: Words, rng: random.Random) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "words":
        return f"{rng.choice(words.adjectives)}-{rng.choice(words.nouns)}"
    assert kind == "uuids", "synthetic.yaml knows these three"
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _singular(text: str) -> str:
    """The published words where one value is asked for."""
    for plural, singular in (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer")):
        text = text.replace(plural, singular)
    return text


def _among_sentences(hidden: Sequence[str], sentences: Sequence[str], rng: random.Random, size: int) -> str:
    """The first `size` sentences, from the beginning again where there are fewer, with needles between them."""
    text = [sentences[place % len(sentences)] for place in range(size)]
    places = sorted(int(size * depth / 100) for depth in rng.sample(_DEPTHS, len(hidden)))
    for place, needle in zip(reversed(places), reversed(hidden), strict=True):
        text.insert(place, needle)
    return " ".join(text)


def variable_tracking(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """Chains of assignments in `size` repetitions of the noise, after an example of three-letter names."""
    example = chains(task, material, rng, material.example, letters=3)
    asked = chains(task, material, rng, size, letters=5)
    text = f"{example.text}{example.prefix} {' '.join(example.answers)}\n\n{asked.text}"
    return Made(text=text, prefix=asked.prefix, answers=asked.answers)


def chains(task: Task, material: Material, rng: random.Random, size: int, *, letters: int = 3) -> Made:
    """The template with chains of assignments in `size` repetitions of the noise; the first chain is asked for."""
    hops, count = task.arguments["num_hops"], task.arguments["num_chains"]
    names: list[str] = []
    while len(names) < (hops + 1) * count:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        names += [name] if name not in names else []
    values = [str(rng.randint(10_000, 99_998)) for _ in range(count)]
    lines = [material.noise] * size
    for chain, value in enumerate(values):
        own = names[chain * (hops + 1) : (chain + 1) * (hops + 1)]
        said = [f"VAR {own[0]} = {value}", *(f"VAR {new} = VAR {old} " for old, new in pairwise(own))]
        for shift, place in enumerate(sorted(rng.sample(range(len(lines)), len(said)))):
            lines.insert(place + shift, said[shift])
    fill = {"context": "\n".join(lines).replace(". \n", ".\n"), "query": values[0], "num_v": hops + 1}
    return Made(text=task.template.format(**fill), prefix=task.prefix.format(**fill), answers=tuple(names[: hops + 1]))


def common_words(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """A numbered list of `size` different words, ten of which stand there more often, after a short example."""
    short, given = material.longest < 4096, task.arguments
    often, seldom = (6, 1) if short else (given["freq_cw"], given["freq_ucw"])
    example = _list_of(material.words, rng, 20 if short else 40, given["num_cw"], *((3, 1) if short else (10, 3)))
    asked = _list_of(material.words, rng, size, given["num_cw"], often, seldom)
    texts = [task.template.format(context=context, num_cw=given["num_cw"], query="") for context, _ in (example, asked)]
    answer = " ".join(f"{place}. {word}" for place, word in enumerate(example[1], start=1))
    return Made(text=f"{texts[0]}{task.prefix} {answer}\n{texts[1]}", prefix=task.prefix, answers=tuple(asked[1]))


def _list_of(
    words: Words, rng: random.Random, size: int, common: int, often: int, seldom: int
) -> tuple[str, list[str]]:
    drawn = rng.sample(words.all, size)
    listed = drawn[:common] * often + drawn[common:] * seldom
    rng.shuffle(listed)
    return " ".join(f"{place}. {word}" for place, word in enumerate(listed, start=1)), drawn[:common]


def frequent_words(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """About `size` coded words whose frequencies fall as a zeta distribution; the most frequent of them is dots."""
    from scipy.special import zeta

    alpha, known = task.arguments["alpha"], max(4, (material.longest - task.answer_tokens) // 50)
    vocabulary: list[str] = []
    taken: set[str] = set()
    while len(vocabulary) < known:
        word = "".join(rng.choices(string.ascii_lowercase, k=6))
        if word not in taken:
            taken.add(word)
            vocabulary.append(word)
    vocabulary[0] = "..."
    counts = (size * np.arange(1, known + 1) ** -float(alpha) / zeta(alpha)).astype(int).tolist()
    listed = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
    rng.shuffle(listed)
    fill = {"context": " ".join(listed), "query": ""}
    return Made(text=task.template.format(**fill), prefix=task.prefix.format(**fill), answers=tuple(vocabulary[1:4]))


def over_documents(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """A question over `size` passages, those that answer it among them."""
    corpus = material.corpora[task.arguments["dataset"]]
    asked = corpus.questions[material.number % len(corpus.questions)]
    shown = corpus.shown(asked, rng, size)
    context = "\n\n".join(material.document.format(i=place, document=text) for place, text in enumerate(shown, start=1))
    return Made(
        text=task.template.format(context=context, query=asked.query), prefix=task.prefix, answers=asked.answers
    )


def least_size(task: Task, material: Material) -> int:
    """The least size that a task can be made in."""
    given = task.arguments
    if task.kind == "niah":
        return max(given["num_needle_k"], given["num_needle_q"]) * given["num_needle_v"]
    if task.kind == "variable_tracking":
        return given["num_hops"] + 1
    if task.kind == "common_words_extraction":
        return given["num_cw"]
    if task.kind == OVER_DOCUMENTS:
        return max(len(each.own) for each in material.corpora[given["dataset"]].questions)
    return 100


OVER_DOCUMENTS = "qa"
MAKERS: dict[str, Maker] = {
    "niah": needles,
    "variable_tracking": variable_tracking,
    "common_words_extraction": common_words,
    "freq_words_extraction": frequent_words,
    OVER_DOCUMENTS: over_documents,
}
