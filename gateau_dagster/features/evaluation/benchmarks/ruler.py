"""RULER (Hsieh et al. 2024): needles, chains of variables, common words and questions over documents, of a set length.

Texts and settings of the tasks are read from the benchmark's repository (NVIDIA/RULER, Apache 2.0). The samples are
generated here.
"""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files as package_files
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import LONGEST, MOST_SEEDS, InputAddress, InputAddresses
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.benchmarks.needle import sentences_of
from gateau_dagster.features.evaluation.grading import share_contained
from gateau_dagster.features.evaluation.question_files import QuestionFiles, check_lengths, lengths_within
from gateau_dagster.models.prompt import encode
from gateau_dagster.readable import nearest_name

# RULER's questions over documents are from SQuAD and HotpotQA. Other passages surround those with the answer.


OVER = {"qa_1": "squad", "qa_2": "hotpotqa"}
"""The option of `evaluation.ruler` that names the file of questions, by task."""
_DOWNLOADS = {
    "squad": "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
    "hotpotqa": "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
}


@dataclass(frozen=True, kw_only=True)
class DocumentQuestion:
    """A question over documents.

    own: the indices of its passages. near: the indices of other passages from the same article, which are shown before
    passages from other articles.
    """

    query: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All passages in sorted order, and the questions in the order of the file."""

    documents: Sequence[str]
    questions: Sequence[DocumentQuestion]

    def shown(self, asked: DocumentQuestion, rng: random.Random, size: int) -> list[str]:
        """Return `size` passages in a random order, including those of the question.

        If there are no more passages than `size`, return all of them, repeated from the first.
        """
        if size >= len(self.documents):
            found = [self.documents[place % len(self.documents)] for place in range(size)]
        else:
            room, known = size - len(asked.own), {*asked.own, *asked.near}
            if room > len(asked.near):
                rest = [place for place in range(len(self.documents)) if place not in known]
                places = [*asked.own, *asked.near, *rng.sample(rest, room - len(asked.near))]
            else:
                places = [*asked.own, *rng.sample(asked.near, room)]
            found = [self.documents[place] for place in places]
        rng.shuffle(found)
        return found


def read_squad(records: Sequence[Mapping[str, Any]]) -> Corpus:
    """Return the answerable questions of SQuAD 2.0's file.

    Raises:
        KeyError, TypeError: the records are from another file.
    """
    articles = [list(article["paragraphs"]) for record in records for article in record["data"]]
    documents, places = _sorted(each["context"] for article in articles for each in article)
    questions = []
    for article in articles:
        near = [places[each["context"]] for each in article]
        for paragraph in article:
            own = places[paragraph["context"]]
            others = tuple(place for place in near if place != own)
            for asked in paragraph["qas"]:
                if not asked["is_impossible"]:
                    answers = tuple(each["text"] for each in asked["answers"])
                    questions.append(
                        DocumentQuestion(query=asked["question"], answers=answers, own=(own,), near=others)
                    )
    return Corpus(documents=documents, questions=questions)


def read_hotpotqa(records: Sequence[Mapping[str, Any]]) -> Corpus:
    """Return the questions of HotpotQA's distractor file.

    Raises:
        KeyError, TypeError: the records are from another file.
    """
    rows = [(each, [f"{title}\n{''.join(said)}" for title, said in each["context"]]) for each in records]
    documents, places = _sorted(text for _, texts in rows for text in texts)
    questions = [
        DocumentQuestion(query=each["question"], answers=(each["answer"],), own=tuple(places[text] for text in texts))
        for each, texts in rows
    ]
    return Corpus(documents=documents, questions=questions)


_READERS: Mapping[str, Callable[[Sequence[Mapping[str, Any]]], Corpus]] = {
    "squad": read_squad,
    "hotpotqa": read_hotpotqa,
}


def _sorted(texts: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    documents = sorted({*texts})
    return documents, {text: place for place, text in enumerate(documents)}


def read_corpus(name: str, files: QuestionFiles) -> Corpus:
    """Return the passages and questions of a data set of OVER.

    Raises:
        GateauError: the files are missing or have another format.
    """
    records = [record for _, _, record in files.objects()]
    with files.understood():
        found = _READERS[name](records)
    if not found.questions:
        raise files.wrong(f"{files.path} has no question")
    return found


# RULER's synthetic tasks (Hsieh et al. 2024) have any size: needles, chains of variables, most common words.


_DEPTHS = [round(place * 100 / 39) for place in range(40)]
"""Possible depths of a needle in essays, in per cent of the text."""


@dataclass(frozen=True, kw_only=True)
class WordLists:
    """The words of the package wonderwords, sorted."""

    nouns: Sequence[str]
    adjectives: Sequence[str]
    verbs: Sequence[str]

    @property
    def all(self) -> list[str]:
        """Return each word once, sorted."""
        return sorted({*self.nouns, *self.adjectives, *self.verbs})


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as published.

    kind: the key of its maker in MAKERS. template, prefix: texts with placeholders; the prefix begins the answer.
    arguments: the arguments from synthetic.yaml.
    """

    name: str
    kind: str
    template: str
    prefix: str
    answer_tokens: int
    arguments: Mapping[str, Any]

    @classmethod
    def published(cls, name: str, described: Mapping[str, Any], kinds: Mapping[str, Mapping[str, Any]]) -> Task:
        """Return the task from `described`, its entry in synthetic.yaml, and `kinds` from constants.py.

        Raises:
            KeyError, TypeError: an entry is missing or has another type.
        """
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
    """The texts from which samples are made.

    needle: a text with {type_needle_v}, {key} and {value}. noise: sentences without information.
    sentences: the sentences of the essays that hide needles. longest: the tokens of the prompts; below 4,096, words in
    lists repeat less often. example: the number of repetitions of the noise in the example of chains.
    corpora: the passages and questions over documents, by name. document: the format of a passage. number: the number
    of the sample, which selects the question.
    """

    needle: str
    noise: str
    words: WordLists
    sentences: Sequence[str] = ()
    longest: int = 4096
    example: int = 5
    corpora: Mapping[str, Corpus] = field(default_factory=dict)
    document: str = ""
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Made:
    """A sample: the prompt, the beginning of the answer, and the texts that the answer must contain."""

    text: str
    prefix: str
    answers: tuple[str, ...]


Maker = Callable[[Task, Material, random.Random, int], Made]


def needles(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """Hide needles in `size` repetitions of the noise, among `size` other needles, or in `size` sentences of essays."""
    kinds, given = (task.arguments["type_needle_k"], task.arguments["type_needle_v"]), task.arguments
    asked, each = given["num_needle_q"], given["num_needle_v"]
    pairs = [
        (_random(kinds[0], material.words, rng), [_random(kinds[1], material.words, rng) for _ in range(each)])
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


def _random(kind: str, words: WordLists, rng: random.Random) -> str:
    if kind == "numbers":
        return str(rng.randint(10**6, 10**7 - 1))
    if kind == "words":
        return f"{rng.choice(words.adjectives)}-{rng.choice(words.nouns)}"
    assert kind == "uuids", "synthetic.yaml knows these three"
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _singular(text: str) -> str:
    for plural, singular in (("Some", "A"), ("are all", "is"), ("are", "is"), ("answers", "answer")):
        text = text.replace(plural, singular)
    return text


def _among_sentences(hidden: Sequence[str], sentences: Sequence[str], rng: random.Random, size: int) -> str:
    """Insert the needles into the first `size` sentences, which repeat if there are fewer."""
    text = [sentences[place % len(sentences)] for place in range(size)]
    places = sorted(int(size * depth / 100) for depth in rng.sample(_DEPTHS, len(hidden)))
    for place, needle in zip(reversed(places), reversed(hidden), strict=True):
        text.insert(place, needle)
    return " ".join(text)


def variable_tracking(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """Hide chains of assignments in `size` repetitions of the noise, after an example with three-letter names."""
    example = chains(task, material, rng, material.example, letters=3)
    asked = chains(task, material, rng, size, letters=5)
    text = f"{example.text}{example.prefix} {' '.join(example.answers)}\n\n{asked.text}"
    return Made(text=text, prefix=asked.prefix, answers=asked.answers)


def chains(task: Task, material: Material, rng: random.Random, size: int, *, letters: int = 3) -> Made:
    """Fill the template with chains of assignments in `size` repetitions of the noise, and ask for the first chain."""
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
    """List `size` different words with numbers, after a short example. Ten of the words occur more often."""
    short, given = material.longest < 4096, task.arguments
    often, seldom = (6, 1) if short else (given["freq_cw"], given["freq_ucw"])
    example = _list_of(material.words, rng, 20 if short else 40, given["num_cw"], *((3, 1) if short else (10, 3)))
    asked = _list_of(material.words, rng, size, given["num_cw"], often, seldom)
    texts = [task.template.format(context=context, num_cw=given["num_cw"], query="") for context, _ in (example, asked)]
    answer = " ".join(f"{place}. {word}" for place, word in enumerate(example[1], start=1))
    return Made(text=f"{texts[0]}{task.prefix} {answer}\n{texts[1]}", prefix=task.prefix, answers=tuple(asked[1]))


def _list_of(
    words: WordLists, rng: random.Random, size: int, common: int, often: int, seldom: int
) -> tuple[str, list[str]]:
    drawn = rng.sample(words.all, size)
    listed = drawn[:common] * often + drawn[common:] * seldom
    rng.shuffle(listed)
    return " ".join(f"{place}. {word}" for place, word in enumerate(listed, start=1)), drawn[:common]


def frequent_words(task: Task, material: Material, rng: random.Random, size: int) -> Made:
    """List about `size` coded words with frequencies from a zeta distribution; the most frequent one is dots."""
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
    """Ask a question over `size` passages, including those that answer it."""
    corpus = material.corpora[task.arguments["dataset"]]
    asked = corpus.questions[material.number % len(corpus.questions)]
    shown = corpus.shown(asked, rng, size)
    context = "\n\n".join(material.document.format(i=place, document=text) for place, text in enumerate(shown, start=1))
    return Made(
        text=task.template.format(context=context, query=asked.query), prefix=task.prefix, answers=asked.answers
    )


def least_size(task: Task, material: Material) -> int:
    """Return the smallest possible size of a task."""
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


OFFICIAL, HAYSTACK = "evaluation.ruler.official", "evaluation.ruler.haystack"
CURE = "clone https://github.com/NVIDIA/RULER, and give its path"
_SYNTHETIC = "scripts/data/synthetic"
_FILES = ("scripts/synthetic.yaml", *(f"{_SYNTHETIC}/{name}.py" for name in ("constants", "niah", "qa")))
_EXAMPLE_TOKENS = 500
OFFLINE = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "cwe", "fwe")
IN_ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")


class RulerOptions(Section):
    """RULER's tasks to run, their lengths, and the number of samples."""

    official: InputAddress | None = Field(
        default=None, description="The folder of RULER's repository.", examples=["RULER"]
    )
    haystack: InputAddresses | None = Field(
        default=None,
        description=f"Text files, such as Paul Graham's essays, for the tasks {', '.join(IN_ESSAYS)}.",
        examples=["essays/*.txt"],
    )
    squad: InputAddress | None = Field(
        default=None, description="SQuAD's dev-v2.0.json, for the task qa_1.", examples=["squad/dev-v2.0.json"]
    )
    hotpotqa: InputAddress | None = Field(
        default=None,
        description="HotpotQA's hotpot_dev_distractor_v1.json, for the task qa_2.",
        examples=["hotpotqa/dev.json"],
    )
    tasks: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Names of tasks in synthetic.yaml; default: all whose files are given.",
        examples=[["niah_single_1", "vt"]],
    )
    lengths: list[Annotated[int, Field(ge=1, le=LONGEST)]] = Field(
        default=[4096, 8192, 16_384, 32_768],
        min_length=1,
        description="Tokens of question and answer, by the base model's tokenizer.",
    )
    samples: int = Field(default=50, ge=1, le=100_000, description="Samples of each task and length; published: 500.")
    seed: int = Field(default=42, ge=0, lt=MOST_SEEDS, description="Seeds the questions.")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tasks."""
        if self.tasks is not None:
            return tuple(dict.fromkeys(self.tasks))
        over = (task for task, name in OVER.items() if getattr(self, name) is not None)
        return (*OFFLINE, *(() if self.haystack is None else IN_ESSAYS), *over)

    @property
    def corpora(self) -> dict[str, str | None]:
        """Return the files of the requested questions over documents, by option."""
        return {OVER[name]: getattr(self, OVER[name]) for name in self.names if name in OVER}


@cache
def words() -> WordLists:
    """Return the words of the package wonderwords, which RULER uses.

    Raises:
        GateauError: the package is not installed.
    """
    if find_spec("wonderwords") is None:
        raise GateauError(
            "evaluation.package",
            "evaluation.ruler: needs the package wonderwords for its words, which is not installed: pip "
            "install 'gateau-dagster[evaluation]'",
        )
    lists = (package_files("wonderwords") / "assets" / f"{kind}list.txt" for kind in ("noun", "adjective", "verb"))
    texts = (each.read_text(encoding="utf-8").splitlines() for each in lists)
    nouns, adjectives, verbs = (sorted({line.rstrip() for line in text if line.strip()}) for text in texts)
    return WordLists(nouns=nouns, adjectives=adjectives, verbs=verbs)


def largest(size: int, fits: Callable[[int], bool]) -> int:
    """Return the largest size from `size` to 2^24 that fits, or 0 if `size` does not; smaller ones must fit, too."""
    if not fits(size):
        return 0
    low, high = size, 2 * size
    while high < 2**24 and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def samples_of(
    task: Task, material: Material, options: RulerOptions, *, length: int, count: Callable[[str], int]
) -> Iterator[Made]:
    """Yield `options.samples` samples that nearly fill `length` tokens, with room for the answer.

    count: returns the number of tokens of a text.

    Raises:
        GateauError: the length is too short for a task.
    """
    room, make = length - task.answer_tokens, MAKERS[task.kind]

    def made(index: int, size: int) -> Made:
        # A generator for each sample: it is the same whatever other samples, tasks and lengths are configured.
        rng = random.Random(f"{options.seed}:{task.name}:{length}:{index}")
        return make(task, replace(material, number=index), rng, size)

    def fits(index: int, size: int) -> bool:
        sample = made(index, size)
        return count(sample.text + sample.prefix) <= room

    least, most = least_size(task, material), 2**24
    if task.kind == "common_words_extraction":
        most = len(material.words.all)
    # Searched for the first sample only, since each try tokenises a whole prompt. The others are shrunk where they turn
    # out longer.
    size = largest(least, lambda size: size <= most and fits(0, size))
    for index in range(options.samples):
        own = size
        while own >= least and not fits(index, own):
            own -= max(1, own // 100)
        if own < least:
            raise GateauError(
                "evaluation.length",
                f"evaluation.ruler.lengths: {task.name} needs more than {length} tokens: raise the length",
            )
        yield made(index, own)


def _with_example(task: Task, material: Material, options: RulerOptions, count: Callable[[str], int]) -> Material:
    """Return the material with an example of chains of up to 500 tokens."""

    def fits(size: int) -> bool:
        made = chains(task, material, random.Random(options.seed), size)
        return count(made.text + made.prefix) <= _EXAMPLE_TOKENS

    least = task.arguments["num_hops"] + 1
    return replace(material, example=max(least, largest(least, fits)))


def _question(task: Task, length: int, index: int, made: Made) -> Question:
    return Question(
        question_id=f"{task.name}/{length}/{index}",
        group=f"{task.name}/{length}",
        turns=(made.text,),
        prefill=made.prefix,
        generation=Generation(max_new_tokens=task.answer_tokens),
        references=made.answers,
        facts={"length": length, "one_suffices": task.kind == OVER_DOCUMENTS},
    )


class Ruler(QuestionBenchmark):
    """RULER's published tasks, on samples that are generated here."""

    name = "ruler"
    title = "RULER"
    description = (
        "Needles, chains of variables, most common words and questions over documents in prompts made to a length."
    )
    code_version = "2"
    options: RulerOptions
    unit = "%"
    by_base = True
    groups = "task and length"
    groupings: ClassVar = {"length": id_part(1), "task": id_part(0)}

    def questions(self, materials: Materials) -> list[Question]:
        """Return the questions. They are equal for all variants, because the base model's tokenizer counts tokens."""
        tasks, common = self.tasks()
        tokenizer = materials.base_tokenizer()

        def count(text: str) -> int:
            return len(encode(tokenizer, text))

        options, essays = self.options, [*self._sentences()]
        corpora = {name: read_corpus(name, files) for name, files in self._corpora().items()}
        found: list[Question] = []
        lengths = self._lengths
        total = len(tasks) * len(lengths) * options.samples
        for length in lengths:
            material = replace(common, sentences=essays, corpora=corpora, longest=length)
            for task in tasks:
                own = _with_example(task, material, options, count) if task.kind == "variable_tracking" else material
                made = samples_of(task, own, options, length=length, count=count)
                found += [_question(task, length, index, each) for index, each in enumerate(made)]
                materials.progress(len(found), total, "questions", "making")
        return found

    def value(self, question: Question, answer: str) -> float:
        """Return the percentage of the expected texts that the answer contains; over documents, one text gives 100."""
        share = share_contained(answer, question.references)
        return 100.0 * (share > 0) if question.facts["one_suffices"] else 100 * share

    def tasks(self) -> tuple[list[Task], Material]:
        """Return the published tasks, and their needle, noise, words and passage format.

        Raises:
            GateauError: the files are missing.
        """
        files = self._official()
        settings, constants, code, over = files.find()
        (kinds,) = files.assigned(constants, "TASKS")
        described = files.mapping(settings)
        with files.understood(settings.label):
            tasks = [Task.published(name, described[name], kinds) for name in self.options.names]
        needle, noise, document = (
            files.assigned(file, name)[0]
            for file, name in ((code, "needle"), (code, "haystack"), (over, "DOCUMENT_PROMPT"))
        )
        return tasks, Material(needle=needle, noise=noise, words=words(), document=document)

    def probe(self, materials: Materials) -> None:
        self.tasks()

    def sizes(self) -> list[tuple[float, float]]:
        """Return the sizes in tokens: a prompt fills its length up to the answer."""
        tasks, _ = self.tasks()
        each = [
            (float(length - task.answer_tokens), float(task.answer_tokens))
            for length in self._lengths
            for task in tasks
        ]
        return [size for size in each for _ in range(self.options.samples)]

    def files(self) -> Sequence[QuestionFiles]:
        haystack = [] if self.options.haystack is None else [self._haystack()]
        return [self._official(), *haystack, *self._corpora().values()]

    def check(self) -> None:
        """Check the options.

        Raises:
            GateauError: files or words are missing, or a task is unknown.
        """
        names = self.options.names
        known_tasks = (*OFFLINE, *IN_ESSAYS, *OVER)
        unknown = [name for name in names if name not in known_tasks]
        if unknown:
            raise GateauError(
                "evaluation.task",
                f"evaluation.ruler.tasks: there is no task {unknown[0]!r}; {nearest_name(unknown[0], known_tasks)}",
            )
        in_essays = [name for name in names if name in IN_ESSAYS]
        if in_essays and self.options.haystack is None:
            raise GateauError(
                "evaluation.benchmark_files",
                f"{HAYSTACK}: is required by {', '.join(in_essays)}: give text files, or remove the tasks",
            )
        super().check()
        given = "lengths" in self.options.model_fields_set
        check_lengths(self.place("lengths"), self.options.lengths, self.config.scoring.max_length, given=given)
        words()

    @property
    def _lengths(self) -> list[int]:
        return lengths_within(self.options.lengths, self.config.scoring.max_length)

    def _official(self) -> QuestionFiles:
        folder = self.options.official
        paths = None if folder is None else [f"{folder}/{name}" for name in _FILES]
        return QuestionFiles(config=self.config, place=OFFICIAL, path=paths, cure=CURE)

    def _haystack(self) -> QuestionFiles:
        return QuestionFiles(
            config=self.config, place=HAYSTACK, path=self.options.haystack, cure="give text files", plain_texts=True
        )

    def _corpora(self) -> dict[str, QuestionFiles]:
        return {
            name: QuestionFiles(
                config=self.config, place=self.place(name), path=path, cure=f"download {_DOWNLOADS[name]}, and give it"
            )
            for name, path in self.options.corpora.items()
        }

    def _sentences(self) -> Iterator[str]:
        haystack = self._haystack()
        for file in [] if self.options.haystack is None else haystack.find():
            yield from (" ".join(each.split()) for each in sentences_of(haystack.text(file)) if each.strip())
