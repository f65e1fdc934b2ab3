"""HELMET's in-context learning: texts whose labels are numbers that only the examples in the prompt explain."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.helmet_draws import SEED, balanced, seed_of, shuffled
from gateau_dagster.evaluation.helmet_words import Asked, Setting, Words
from gateau_dagster.evaluation.metrics.word_overlap import normalised_words
from gateau_dagster.evaluation.question_files import question_files, rows_of

if TYPE_CHECKING:
    from gateau_dagster.config import Config

_TENTH = 0.1


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """A data set of texts with a label each. hub: its name there. labels: how many numbers there are to draw from.

    label: the field. test: the split that is asked; none: a tenth of `train`. part: of the data set.
    """

    hub: str
    labels: int
    label: str = "label"
    test: str = "test"
    part: str = ""


LABELLED = {
    "icl_trec_coarse": LabelledSet(hub="CogComp/trec", labels=6, label="coarse_label"),
    "icl_trec_fine": LabelledSet(hub="CogComp/trec", labels=50, label="fine_label"),
    "icl_banking77": LabelledSet(hub="PolyAI/banking77", labels=77),
    "icl_clinic150": LabelledSet(hub="clinc/clinc_oos", labels=151, label="intent", test="validation", part="plus"),
    "icl_nlu": LabelledSet(hub="xingkunliuxtracta/nlu_evaluation_data", labels=68, test=""),
}


def cure(task: str) -> str:
    """How a task's data are got."""
    hub = LABELLED[task].hub
    return (
        f"hf download {hub} --repo-type dataset --revision refs/convert/parquet --local-dir FOLDER/{hub}, and give "
        "FOLDER"
    )


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The rows of a data set: those that are asked, and those that examples are drawn from; text and label of each."""

    asked: Sequence[tuple[str, int]]
    examples: Sequence[tuple[str, int]]


def read_labelled(config: Config, place: str, folder: str, task: str) -> Labelled:
    """A task's rows. Raises GateauError where they are not there, or are no rows of it."""
    known = LABELLED[task]
    files = question_files(config, place, f"{folder}/{known.hub}", cure=cure(task))
    rows = {
        split: [_row(record, known, f"{place}: {file.label}:{number}", task) for file, number, record in found]
        for split in ("train", known.test)
        if split and (found := [*rows_of(_of_split(files, known.part, split), place)])
    }
    train, test = rows.get("train", []), rows.get(known.test, [])
    if not known.test:
        mixed = shuffled(train)
        size = math.ceil(_TENTH * len(mixed))
        test, train = mixed[:size], mixed[size:]
    if not train or not test:
        splits = " and ".join(each for each in ("train", known.test) if each)
        raise GateauError(f"{place}: {folder}/{known.hub} has no rows of the split {splits}; {cure(task)}")
    return Labelled(asked=test, examples=train)


def _of_split(files: Sequence[SourceFile], part: str, split: str) -> list[SourceFile]:
    """As the hub lays them out: part/split/0000.parquet, or part/split-00000-of-00001.parquet."""
    named = re.compile(rf"(^|/){split}[^/]*(/[^/]*)?$")
    found = [file for file in files if named.search(file.address)]
    return [file for file in found if f"/{part}/" in file.address] if part else found


def _row(record: dict[str, Any], known: LabelledSet, where: str, task: str) -> tuple[str, int]:
    text, label = record.get("text"), record.get(known.label)
    if not isinstance(text, str) or not isinstance(label, int) or not 0 <= label < known.labels:
        raise GateauError(f"{where} is no row of {task}: it lacks a text, or a number as {known.label}; {cure(task)}")
    return text, label


def asked_labels(setting: Setting, words: Words, rows: Labelled, *, most: int) -> Iterator[Asked]:
    """`most` rows, the labels in equal shares, or all; each with examples and numbers of its own, as HELMET draws."""
    asked = rows.asked
    if len(asked) > most:
        mixed = shuffled(asked)
        asked = [mixed[place] for place in balanced([label for _, label in mixed], most, SEED)]
    known = [label for _, label in rows.examples]
    for number, (text, label) in enumerate(asked):
        seed = seed_of(text, SEED)
        numbers = [*range(LABELLED[setting.task].labels)]
        random.Random(seed).shuffle(numbers)
        shown = (rows.examples[place] for place in balanced(known, setting.shots, seed))
        context = "\n\n".join(words.demo.format(text=each, label=numbers[of]) for each, of in shown)
        prompt = words.user.format(context=context, question=text)
        yield Asked(key=str(number), prompt=prompt, lead=words.lead, answers=(str(numbers[label]),), whole=True)


def says(answer: str, lead: str, right: str) -> bool:
    """Whether the answer, or what follows `lead` in it, is the right one, but for case, punctuation and articles."""
    found = re.search(f"{re.escape(lead)}(.*)", answer, re.IGNORECASE) or re.match("(.*)", answer)
    assert found is not None, "the last one matches everything"
    said = re.sub(f"^{re.escape(lead)}", "", found[1].strip(), flags=re.IGNORECASE)
    return normalised_words(said) == normalised_words(right)
