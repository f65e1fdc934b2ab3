"""HELMET (Yen et al. 2024), its tasks without a judge: recall, questions over passages, re-ranking, labels.

Texts and settings are read from its repository, rows from its data and from the public data sets of its label tasks.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from pydantic import Field, field_validator

from gateau_dagster.config.base import Section
from gateau_dagster.config.values import InputAddress
from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Generation, Materials, Question, QuestionBenchmark, id_part
from gateau_dagster.features.evaluation.grading import ndcg, normalised_words, ranked_ids
from gateau_dagster.features.evaluation.question_files import QuestionFiles, check_lengths, lengths_within

if TYPE_CHECKING:
    from gateau_dagster.config import Config


# HELMET's draws of rows and examples, with its seed and the random generators of its code.


SEED = 42
Row = Mapping[str, Any]
Each = TypeVar("Each")


def shuffled(rows: Sequence[Each], seed: int = SEED) -> list[Each]:
    """Return the rows in the order in which the package datasets shuffles them."""
    return [rows[place] for place in np.random.default_rng(seed).permutation(len(rows))]


def drawn_by_key(rows: Sequence[Row], key: str, most: int) -> list[Row]:
    """Return every row of `most` different values of `key`."""
    known = sorted({row[key] for row in rows})
    drawn = {*random.Random(SEED).sample(known, min(most, len(known)))}
    return [row for row in rows if row[key] in drawn]


def seed_of(text: str, seed: int = 0) -> int:
    """Return a seed that depends on the text."""
    return (int(hashlib.sha256(text.encode()).hexdigest(), 16) + seed) % 2**31


def examples(rows: Sequence[Row], key: str, own: Any, count: int) -> list[Row]:
    """Return `count` rows with different values of `key`, drawn for the question with value `own`; fewer if there are
    fewer.
    """
    found: dict[Any, Row] = {}
    for row in shuffled(rows, seed_of(str(own))):
        if len(found) == count:
            break
        found.setdefault(row[key], row)
    return [*found.values()]


def balanced(labels: Sequence[Hashable], count: int, seed: int) -> list[int]:
    """Return places of `count` rows in rounds; each round has every label once, in its own order."""
    rng, of_label = random.Random(seed), dict[Hashable, list[int]]()
    for place, label in enumerate(labels):
        of_label.setdefault(label, []).append(place)
    rounds: list[list[int]] = [[] for _ in range(math.ceil(count / len(of_label)))]
    for places in of_label.values():
        drawn = rng.sample(places, len(rounds) % len(places))
        while len(drawn) < len(rounds):  # a label with fewer rows than rounds repeats some of them
            drawn += rng.sample(places, min(len(rounds) - len(drawn), len(places)))
        for each, place in zip(rounds, drawn, strict=True):
            each.append(place)
    for each in rounds:
        rng.shuffle(each)
    return [place for each in rounds for place in each][:count]


# HELMET's tasks as its repository configures them, and their prompt texts from its code.


RECALL, RANKED, POPULAR = "json_kv", "msmarco_rerank_psg", "kilt_popqa_3"
READ = ("kilt_nq", "kilt_triviaqa", "kilt_hotpotqa", POPULAR)
IN_CONTEXT = "icl_"
_LOADERS = {RECALL: "load_json_kv", RANKED: "load_msmarco_rerank"}
_SHOTS = re.compile(r"(\w+)_(\d+)shot_balance")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task at a length.

    demo_file: of the examples in the prompt; empty if the rows have their own. test_file: empty for in-context
    learning, whose rows come from public data sets. most: number of different questions.
    """

    task: str
    length: int
    answer_tokens: int
    test_file: str
    demo_file: str
    shots: int
    most: int
    one_line: bool


@dataclass(frozen=True, kw_only=True)
class TaskTexts:
    """The texts of a task. user: with {demos}, {context} and {question}; lead: how the answer begins."""

    user: str
    lead: str
    demo: str
    passages: tuple[str, ...]


def settings_of(described: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings in a file of HELMET's folder configs; the values are comma-separated lists."""
    names = ("datasets", "input_max_length", "generation_max_length", "test_files", "demo_files")
    columns = [str(described[name]).split(",") for name in names]
    for name, length, tokens, test, demo in zip(*columns, strict=True):
        labelled = _SHOTS.fullmatch(name)
        yield Setting(
            task=labelled[1] if labelled else name,
            length=int(length),
            answer_tokens=int(tokens),
            test_file=test,
            demo_file=demo,
            shots=int(labelled[2]) if labelled else described["shots"],
            most=described["max_test_samples"],
            one_line=described["stop_new_line"],
        )


def words_of(files: QuestionFiles, task: str) -> TaskTexts:
    """Read a task's texts from HELMET's data.py. Raises GateauError if that is another file."""
    code = files.only()
    labelled = task.startswith(IN_CONTEXT)
    loader = "load_icl" if labelled else _LOADERS.get(task, "load_qa")
    demo = "item_template" if labelled else "demo_template"
    return TaskTexts(
        user=files.assigned(code, "user_template", inside=loader)[-1],
        lead=files.assigned(code, "system_template", inside=loader)[-1],
        demo=files.assigned(code, demo, inside=loader)[-1] if task != RANKED else "",
        passages=tuple(text for text in files.texts_in(code, loader) if text.endswith("{text}")),
    )


# HELMET's in-context learning: text labels are numbers that only the examples in the prompt explain.


_TENTH = 0.1


@dataclass(frozen=True, kw_only=True)
class LabelledSet:
    """A data set of labelled texts.

    hub: its name on the hub. labels: how many different labels there are. label: the field. test: the split of the
    questions; if empty, a tenth of `train`. part: of the data set.
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


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """The rows of a data set, as text and label: the questions, and the rows that examples are drawn from."""

    asked: Sequence[tuple[str, int]]
    examples: Sequence[tuple[str, int]]


def labelled_files(config: Config, place: str, folder: str | None, task: str) -> QuestionFiles:
    """Return the files of a task's data set."""
    hub = LABELLED[task].hub
    command = f"hf download {hub} --repo-type dataset --revision refs/convert/parquet --local-dir FOLDER/{hub}"
    path = None if folder is None else f"{folder}/{hub}"
    key = f"{place}: {task}"
    return QuestionFiles(config=config, place=place, path=path, cure=f"{command}, and give FOLDER", key=key)


def read_labelled(files: QuestionFiles, task: str) -> Labelled:
    """Return a task's rows. Raises GateauError if they are missing or do not belong to it."""
    known, found = LABELLED[task], files.find()
    rows: dict[str, list[tuple[str, int]]] = {}
    for split in filter(None, ("train", known.test)):
        for file, number, record in files.objects(_of_split(found, known.part, split)):
            text, label = record.get("text"), record.get(known.label)
            if not isinstance(text, str) or not isinstance(label, int) or not 0 <= label < known.labels:
                lacking = f"it lacks a text, or a number as {known.label}"
                raise files.wrong(f"{file.label}:{number} is not a row of {task}: {lacking}")
            rows.setdefault(split, []).append((text, label))
    train, test = rows.get("train", []), rows.get(known.test, [])
    if not known.test:
        mixed = shuffled(train)
        size = math.ceil(_TENTH * len(mixed))
        test, train = mixed[:size], mixed[size:]
    if not train or not test:
        splits = " and ".join(filter(None, ("train", known.test)))
        raise files.wrong(f"{files.path} has no rows of the split {splits}")
    return Labelled(asked=test, examples=train)


def _of_split(files: Sequence[SourceFile], part: str, split: str) -> list[SourceFile]:
    # Named as on the hub: part/split/0000.parquet, or part/split-00000-of-00001.parquet.
    named = re.compile(rf"(^|/){split}[^/]*(/[^/]*)?$")
    found = [file for file in files if named.search(file.address)]
    return [file for file in found if f"/{part}/" in file.address] if part else found


def asked_labels(setting: Setting, words: TaskTexts, rows: Labelled, *, most: int) -> Iterator[Question]:
    """Yield `most` rows with balanced labels, or all; HELMET draws examples and label numbers for each."""
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
        yield _question(setting, words, number, prompt, references=(str(numbers[label]),))


def _question(
    setting: Setting,
    words: TaskTexts,
    key: object,
    prompt: str,
    *,
    references: tuple[str, ...] = (),
    relevance: Mapping[str, int] | None = None,
) -> Question:
    """Return a question. key: of its row. relevance: by id of a passage, where passages are ranked."""
    return Question(
        question_id=f"{setting.task}/{setting.length}/{key}",
        group=f"{setting.task}/{setting.length}",
        turns=(prompt,),
        prefill=words.lead,
        generation=Generation(max_new_tokens=setting.answer_tokens, stop=("\n",) if setting.one_line else ()),
        references=references,
        facts={"relevance": relevance or {}, "whole": setting.task in LABELLED, "lead": words.lead},
    )


def says(answer: str, lead: str, right: str) -> bool:
    """Return whether the answer, or the text after `lead` in it, is right, up to case, punctuation and articles."""
    found = re.search(f"{re.escape(lead)}(.*)", answer, re.IGNORECASE) or re.match("(.*)", answer)
    assert found is not None, "the last one matches everything"
    said = re.sub(f"^{re.escape(lead)}", "", found[1].strip(), flags=re.IGNORECASE)
    return normalised_words(said) == normalised_words(right)


# HELMET's prompts for JSON keys, questions over passages and re-ranking, from the rows of its data.


_LESS_POPULAR = 3  # of POPULAR: questions whose entity is looked up fewer than 10^3 times


def asked_of(
    setting: Setting, words: TaskTexts, rows: Sequence[Row], demos: Sequence[Row], *, most: int
) -> Iterator[Question]:
    """Yield every row of `most` different questions, with the examples that HELMET draws for it.

    Raises ValueError if there are too few examples; KeyError, IndexError or TypeError for rows of another form.
    """
    if setting.task == RECALL:
        yield from (_recalled(setting, words, row, row["demos"][: setting.shots]) for row in shuffled(rows)[:most])
        return
    if setting.task == POPULAR:
        rows, demos = ([each for each in many if math.log10(each["s_pop"]) < _LESS_POPULAR] for many in (rows, demos))
    key = _key(setting.task, rows)
    asked = drawn_by_key(rows, key, most)
    make = _ranked if setting.task == RANKED else _read
    for row in asked:
        found = examples(_others(setting.task, row, asked, demos, key), key, row[key], setting.shots)
        if len(found) < setting.shots:
            raise ValueError(f"{setting.demo_file} has fewer than {setting.shots} examples")
        yield make(setting, words, row[key], row, found)


def _key(task: str, rows: Sequence[Row]) -> str:
    name, other = ("qid", "query") if task == RANKED else ("id", "question")
    return name if rows and name in rows[0] else other


def _others(task: str, row: Row, asked: Sequence[Row], demos: Sequence[Row], key: str) -> Sequence[Row]:
    """Return the examples that are not questions, if both are drawn from the same file."""
    if task == RANKED and len(demos) > 2 * len(asked):
        known = {each[key] for each in asked}
        return [each for each in demos if each[key] not in known]
    if task in {POPULAR, RANKED}:
        return [each for each in demos if each[key] != row[key]]
    return demos


def _recalled(setting: Setting, words: TaskTexts, row: Row, demos: Sequence[Sequence[str]]) -> Question:
    shown = "".join(words.demo.format(key=key, value=f" {value}") + "\n\n" for key, value in demos)
    prompt = words.user.format(context=row["context"], demos=shown, question=row["question"])
    return _question(setting, words, row["question"], prompt, references=_listed(row["answer"]))


def _read(setting: Setting, words: TaskTexts, key: object, row: Row, demos: Sequence[Row]) -> Question:
    shown = "".join(
        words.demo.format(documents=_passages(each, words), question=each["question"], answer=each["answers"][0])
        + "\n\n"
        for each in demos
    )
    prompt = words.user.format(context=_passages(row, words), demos=shown, question=row["question"])
    return _question(setting, words, key, prompt, references=_listed(row["answers"]))


def _ranked(setting: Setting, words: TaskTexts, key: object, row: Row, demos: Sequence[Row]) -> Question:
    shown = ""
    for each in demos:
        best_first = sorted(each["ctxs"], key=lambda passage: passage["label"], reverse=True)
        ranking = " > ".join(str(passage["id"]) for passage in best_first)
        shown += f"{_passages(each, words, row)}\n\nQuery: {each['query']}\n{words.lead} {ranking}\n\n"
    prompt = words.user.format(context=_passages(row, words), demos=shown, question=row["query"])
    relevance = {str(each["id"]): int(each["label"]) for each in row["ctxs"]}
    return _question(setting, words, key, prompt, relevance=relevance)


def _passages(row: Row, words: TaskTexts, like: Row | None = None) -> str:
    """Return the passages, with titles if the first passage of the question, `like`, has a title."""
    shown = (like or row)["ctxs"]
    titled = bool(shown) and "title" in shown[0]
    form = next((each for each in words.passages if ("{title}" in each) is titled), words.passages[0])
    return "\n\n".join(form.format(**each) for each in row["ctxs"])


def _listed(answers: Any) -> tuple[str, ...]:
    """Flatten HELMET's answers, which are a text, a list, or a list of lists."""
    if isinstance(answers, str):
        return (answers,)
    return tuple(text for each in answers for text in ([each] if isinstance(each, str) else each))


OFFICIAL, DATA, SETS = "evaluation.helmet.official", "evaluation.helmet.data", "evaluation.helmet.data_sets"
CURE = "clone https://github.com/princeton-nlp/HELMET, and give its path"
DATA_CURE = (
    "download https://huggingface.co/datasets/princeton-nlp/HELMET/resolve/main/data.tar.gz, unpack it, and give the "
    "folder that holds its folder data"
)
TASKS = (RECALL, *READ, RANKED)
_FILES = ("recall", "rag", "rerank", "icl")
_CONFIGS = tuple(f"configs/{name}{short}.yaml" for name in _FILES for short in ("_short", ""))
_CODE = "data.py"


class HelmetOptions(Section):
    """HELMET's tasks to run, their lengths, and the folders of their files."""

    official: InputAddress | None = Field(
        default=None, description="The folder of HELMET's repository.", examples=["HELMET"]
    )
    data: InputAddress | None = Field(
        default=None,
        description="The folder that holds HELMET's unpacked folder data; default: the repository.",
        examples=["HELMET/data"],
    )
    data_sets: InputAddress | None = Field(
        default=None,
        description="The folder with the data sets of in-context learning, by their names on the hub, as parquet.",
        examples=["data_sets"],
    )
    tasks: list[str] | None = Field(
        default=None,
        min_length=1,
        description=f"Some of {', '.join(TASKS)}, and {', '.join(LABELLED)}. Default: all, the latter with data_sets.",
        examples=[["recall"]],
    )
    lengths: list[int] = Field(
        default=[32_768, 65_536],
        min_length=1,
        description="Tokens of its prompts: 8192, 16384 ... 131072. Default: those within scoring.max_length.",
    )
    questions: int | None = Field(
        default=None,
        ge=1,
        description="Different ones a task and length; rows may share one. Default: HELMET's 100, 500 where labels are "
        "asked.",
        examples=[100],
    )
    chat: bool = Field(default=False, description="Whether prompts go through the model's chat template.")

    @field_validator("tasks")
    @classmethod
    def _known(cls, tasks: list[str] | None) -> list[str] | None:
        if tasks is not None and not {*tasks} <= {*TASKS, *LABELLED}:
            raise GateauError("evaluation.task", f"must be some of {', '.join((*TASKS, *LABELLED))}")
        return tasks

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the tasks."""
        if self.tasks is not None:
            return tuple(dict.fromkeys(self.tasks))
        return TASKS if self.data_sets is None else (*TASKS, *LABELLED)

    @property
    def labelled(self) -> tuple[str, ...]:
        """Return the tasks of in-context learning."""
        return tuple(name for name in self.names if name in LABELLED)


def value_of(question: Question, answer: str) -> float:
    """Return the value in per cent: NDCG@10 of a ranking, exact match of a label, or inclusion of a right answer."""
    if question.facts["relevance"]:
        return 100 * ndcg(ranked_ids(answer), question.facts["relevance"], depth=10)
    if question.facts["whole"]:
        return 100.0 * any(says(answer, question.facts["lead"], right) for right in question.references)
    said = " ".join(normalised_words(answer))
    return 100.0 * any(" ".join(normalised_words(right)) in said for right in question.references)


class Helmet(QuestionBenchmark):
    """HELMET's tasks without a judge."""

    name = "helmet"
    title = "HELMET"
    description = (
        "Values of JSON keys, questions over retrieved passages, re-ranking, and labels learned from examples, at "
        "several lengths."
    )
    code_version = "3"
    options: HelmetOptions
    unit = "%"
    groups = "task and length"
    groupings: ClassVar = {"length": id_part(1), "task": id_part(0)}

    def questions(self, materials: Materials) -> list[Question]:
        found: list[Question] = []
        for setting, asked in self._asked():
            seen = Counter[str]()
            for each in asked:
                seen[each.question_id] += 1
                numbered = replace(
                    each, question_id=f"{each.question_id}/{seen[each.question_id]}", chat=self.options.chat
                )
                # Where a prompt is continued, the answer's beginning is its last line.
                last = {} if numbered.chat else {"turns": (f"{each.turns[0]}\n{each.prefill}",), "prefill": ""}
                found.append(replace(numbered, **last))
            materials.progress(len(found), None, "questions", f"{setting.task} of {setting.length} tokens")
        return found

    def value(self, question: Question, answer: str) -> float:
        return value_of(question, answer)

    def files(self) -> Sequence[QuestionFiles]:
        """Return HELMET's settings and code, the rows of its data, and the data sets of its labels."""
        official, data = self._official(*_CONFIGS, _CODE), self._data(self._data_paths(self._wanted()))
        return [official, *([data] if data.path else []), *self._labelled().values()]

    def settings(self) -> Mapping[str, Any]:
        return {"lengths": lengths_within(self.options.lengths, self.config.scoring.max_length), **super().settings()}

    def check(self) -> None:
        """Raise GateauError for missing files, and for lengths that HELMET does not have or that exceed the prompt."""
        given = "lengths" in self.options.model_fields_set
        check_lengths(self.place("lengths"), self.options.lengths, self.config.scoring.max_length, given=given)
        super().check()

    def _official(self, *names: str) -> QuestionFiles:
        folder = self.options.official
        paths = None if folder is None else [f"{folder}/{name}" for name in names]
        return QuestionFiles(config=self.config, place=OFFICIAL, path=paths, cure=CURE)

    def _data(self, paths: str | list[str]) -> QuestionFiles:
        return QuestionFiles(config=self.config, place=DATA, path=paths, cure=DATA_CURE)

    def _labelled(self) -> dict[str, QuestionFiles]:
        folder = self.options.data_sets
        return {task: labelled_files(self.config, SETS, folder, task) for task in self.options.labelled}

    def _data_paths(self, settings: Sequence[Setting]) -> list[str]:
        names = (name for each in settings for name in (each.test_file, each.demo_file) if name)
        return [self._data_path(name) for name in dict.fromkeys(names)]

    def _data_path(self, name: str) -> str:
        return f"{self.options.official if self.options.data is None else self.options.data}/{name}"

    def _wanted(self) -> list[Setting]:
        """Return the chosen tasks at the chosen lengths. Raises GateauError for a length that HELMET does not have."""
        files, known = self._official(*_CONFIGS), list[Setting]()
        for file in files.find():
            described = files.mapping(file)
            with files.understood(file.label):
                known += settings_of(described)
        lengths = lengths_within(self.options.lengths, self.config.scoring.max_length)
        found = [each for each in known if each.task in self.options.names and each.length in lengths]
        for task in self.options.names:
            missing = {*lengths} - {each.length for each in found if each.task == task}
            if missing:
                have = ", ".join(str(length) for length in sorted({each.length for each in known if each.task == task}))
                raise GateauError(
                    "evaluation.length", f"evaluation.helmet.lengths: {task} has {have}, not {min(missing)}"
                )
        return found

    def _asked(self) -> Iterator[tuple[Setting, list[Question]]]:
        """Yield the questions of each task at each length; each file is read once."""
        settings, code = self._wanted(), self._official(_CODE)
        rows = {path: [row for _, _, row in self._data(path).objects()] for path in self._data_paths(settings)}
        labelled = {task: read_labelled(files, task) for task, files in self._labelled().items()}
        for setting in settings:
            words, most = words_of(code, setting.task), self.options.questions or setting.most
            if setting.task in labelled:
                yield setting, [*asked_labels(setting, words, labelled[setting.task], most=most)]
                continue
            path = self._data_path(setting.test_file)
            demos = rows[self._data_path(setting.demo_file)] if setting.demo_file else ()
            with self._data(path).understood(f"{path}, for {setting.task},"):
                questions = [*asked_of(setting, words, rows[path], demos, most=most)]
            yield setting, questions
