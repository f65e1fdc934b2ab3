"""HELMET's tasks as its repository configures them, and each row of their data in the words of its code."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.errors import GateauError
from gateau_dagster.evaluation.python_texts import assigned, texts_in

RECALL, RANKED, POPULAR = "json_kv", "msmarco_rerank_psg", "kilt_popqa_3"
TASKS = (RECALL, "kilt_nq", "kilt_triviaqa", "kilt_hotpotqa", POPULAR, RANKED)
_LOADERS = {RECALL: "load_json_kv", RANKED: "load_msmarco_rerank"}
_LESS_POPULAR = 3  # of POPULAR: questions whose entity is looked up fewer than 10^3 times


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task at a length. demo_file: of the examples that stand in the prompt; empty where the rows have their own."""

    task: str
    length: int
    answer_tokens: int
    test_file: str
    demo_file: str
    shots: int
    one_line: bool


@dataclass(frozen=True, kw_only=True)
class Words:
    """The texts of a task. user: with {demos}, {context} and {question}; lead: how the answer begins."""

    user: str
    lead: str
    demo: str
    passages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question. relevance: by id of a passage, where they are ranked."""

    key: str
    prompt: str
    lead: str
    answers: tuple[str, ...]
    relevance: Mapping[str, int]


def settings_of(described: Mapping[str, Any]) -> Iterator[Setting]:
    """Of a file of HELMET's folder configs, whose values are lists with commas."""
    names = ("datasets", "input_max_length", "generation_max_length", "test_files", "demo_files")
    columns = [str(described[name]).split(",") for name in names]
    for task, length, tokens, test, demo in zip(*columns, strict=True):
        yield Setting(
            task=task,
            length=int(length),
            answer_tokens=int(tokens),
            test_file=test,
            demo_file=demo,
            shots=described["shots"],
            one_line=described["stop_new_line"],
        )


def words_of(code: SourceFile, task: str, place: str) -> Words:
    """From HELMET's data.py. Raises GateauError where that is another file."""
    loader = _LOADERS.get(task, "load_qa")
    texts = texts_in(code, loader, place)
    return Words(
        user=assigned(code, "user_template", place, inside=loader)[-1],
        lead=assigned(code, "system_template", place, inside=loader)[-1],
        demo=assigned(code, "demo_template", place, inside=loader)[-1] if task != RANKED else "",
        passages=tuple(text for text in texts if text.endswith("{text}")),
    )


def asked_of(
    setting: Setting, words: Words, rows: Sequence[Mapping[str, Any]], demos: Sequence[Mapping[str, Any]], *, most: int
) -> Iterator[Asked]:
    """Every row of `most` different questions, drawn by a seed; so are their examples, which are not HELMET's draw."""
    if setting.task == POPULAR:
        rows, demos = ([each for each in many if math.log10(each["s_pop"]) < _LESS_POPULAR] for many in (rows, demos))
    keys = sorted({_key(row, place) for place, row in enumerate(rows)})
    drawn = {*random.Random(42).sample(keys, min(most, len(keys)))}
    make: Callable[..., Asked] = {RECALL: _recalled, RANKED: _ranked}.get(setting.task, _read)
    for place, row in enumerate(rows):
        key = _key(row, place)
        if key in drawn:
            yield make(key, row, words, _demos(key, row, demos, setting))


def _key(row: Mapping[str, Any], place: int) -> str:
    return str(next((row[name] for name in ("qid", "id", "question", "query") if row.get(name)), place))


def _demos(
    key: str, row: Mapping[str, Any], demos: Sequence[Mapping[str, Any]], setting: Setting
) -> Sequence[Mapping[str, Any]]:
    """`shots` examples of different questions, other than the row's, by a hash of its own."""
    if setting.task == RECALL:
        return [{"key": name, "value": value} for name, value in row["demos"][: setting.shots]]
    others = {_key(each, place): each for place, each in enumerate(demos)}
    others.pop(key, None)
    if len(others) < setting.shots:
        raise GateauError(f"evaluation.helmet.data: {setting.demo_file} has fewer than {setting.shots} examples")
    seed = int(hashlib.sha256(key.encode()).hexdigest(), 16)
    return [others[name] for name in random.Random(seed).sample(sorted(others), setting.shots)]


def _recalled(key: str, row: Mapping[str, Any], words: Words, demos: Sequence[Mapping[str, Any]]) -> Asked:
    shown = "".join(words.demo.format(key=each["key"], value=f" {each['value']}") + "\n\n" for each in demos)
    prompt = words.user.format(context=row["context"], demos=shown, question=row["question"])
    return Asked(key=key, prompt=prompt, lead=words.lead, answers=_listed(row["answer"]), relevance={})


def _read(key: str, row: Mapping[str, Any], words: Words, demos: Sequence[Mapping[str, Any]]) -> Asked:
    shown = "".join(
        words.demo.format(documents=_passages(each, words), question=each["question"], answer=each["answers"][0])
        + "\n\n"
        for each in demos
    )
    prompt = words.user.format(context=_passages(row, words), demos=shown, question=row["question"])
    return Asked(key=key, prompt=prompt, lead=words.lead, answers=_listed(row["answers"]), relevance={})


def _ranked(key: str, row: Mapping[str, Any], words: Words, demos: Sequence[Mapping[str, Any]]) -> Asked:
    shown = ""
    for each in demos:
        best_first = sorted(each["ctxs"], key=lambda passage: passage["label"], reverse=True)
        ranking = " > ".join(str(passage["id"]) for passage in best_first)
        shown += f"{_passages(each, words)}\n\nQuery: {each['query']}\n{words.lead} {ranking}\n\n"
    prompt = words.user.format(context=_passages(row, words), demos=shown, question=row["query"])
    relevance = {str(each["id"]): int(each["label"]) for each in row["ctxs"]}
    return Asked(key=key, prompt=prompt, lead=words.lead, answers=(), relevance=relevance)


def _passages(row: Mapping[str, Any], words: Words) -> str:
    """With titles where the first one has one."""
    passages = row["ctxs"]
    titled = bool(passages) and "title" in passages[0]
    form = next((each for each in words.passages if ("{title}" in each) is titled), words.passages[0])
    return "\n\n".join(form.format(**each) for each in passages)


def _listed(answers: Any) -> tuple[str, ...]:
    """HELMET's answers are a text, a list, or a list of lists."""
    if isinstance(answers, str):
        return (answers,)
    return tuple(text for each in answers for text in ([each] if isinstance(each, str) else each))
