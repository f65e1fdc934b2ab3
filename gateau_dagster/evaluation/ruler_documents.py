"""RULER's questions over documents: the passages that answer one among others, from SQuAD and HotpotQA."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.question_files import question_files, rows_of

if TYPE_CHECKING:
    from gateau_dagster.config import Config

OVER = {"qa_1": "squad", "qa_2": "hotpotqa"}
"""The option of `evaluation.ruler` that names the file of a task's questions."""
_DOWNLOADS = {
    "squad": "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json",
    "hotpotqa": "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
}


@dataclass(frozen=True, kw_only=True)
class DocumentQuestion:
    """own: places of the passages that belong to it. near: of others that are shown first, of the same article."""

    query: str
    answers: tuple[str, ...]
    own: tuple[int, ...]
    near: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """All passages, sorted, and the questions in the order of the file."""

    documents: Sequence[str]
    questions: Sequence[DocumentQuestion]

    def shown(self, asked: DocumentQuestion, rng: random.Random, size: int) -> list[str]:
        """`size` passages in a drawn order, those of the question among them.

        All of them, from the first again, where there are not more.
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
    """Of SQuAD 2.0's file: the questions that have an answer. Raises KeyError or TypeError for another file."""
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
    """Of HotpotQA's distractor file. Raises KeyError or TypeError for another one."""
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


def read_corpus(config: Config, name: str, path: str | None) -> Corpus:
    """The passages and questions of one of OVER. Raises GateauError where they are not there, or are others."""
    place, cure = corpus_place(name), corpus_cure(name)
    records = [record for _, _, record in rows_of(question_files(config, place, path, cure=cure), place)]
    try:
        found = _READERS[name](records)
    except (KeyError, TypeError, ValueError) as error:
        raise GateauError(f"{place}: {path} is not the published file ({error!r}); {cure}") from error
    if not found.questions:
        raise GateauError(f"{place}: {path} has no question; {cure}")
    return found


def corpus_place(name: str) -> str:
    """Of its option in the file."""
    return f"evaluation.ruler.{name}"


def corpus_cure(name: str) -> str:
    """How its file is got."""
    return f"download {_DOWNLOADS[name]}, and give its path"
