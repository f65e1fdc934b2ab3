"""HELMET's tasks as its repository configures them, and their texts in the words of its code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateau_dagster.data.sources import SourceFile
from gateau_dagster.evaluation.python_texts import assigned, texts_in

RECALL, RANKED, POPULAR = "json_kv", "msmarco_rerank_psg", "kilt_popqa_3"
READ = ("kilt_nq", "kilt_triviaqa", "kilt_hotpotqa", POPULAR)
IN_CONTEXT = "icl_"
_LOADERS = {RECALL: "load_json_kv", RANKED: "load_msmarco_rerank"}
_SHOTS = re.compile(r"(\w+)_(\d+)shot_balance")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task at a length. demo_file: of the examples that stand in the prompt; empty where the rows have their own.

    test_file: empty for in-context learning, whose rows are of public data sets. most: different questions.
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
class Words:
    """The texts of a task. user: with {demos}, {context} and {question}; lead: how the answer begins."""

    user: str
    lead: str
    demo: str
    passages: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question. relevance: by id of a passage, where they are ranked. whole: whether nothing else may be answered."""

    key: str
    prompt: str
    lead: str
    answers: tuple[str, ...] = ()
    relevance: Mapping[str, int] = field(default_factory=dict)
    whole: bool = False


def settings_of(described: Mapping[str, Any]) -> Iterator[Setting]:
    """Of a file of HELMET's folder configs, whose values are lists with commas."""
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


def words_of(code: SourceFile, task: str, place: str) -> Words:
    """From HELMET's data.py. Raises GateauError where that is another file."""
    labelled = task.startswith(IN_CONTEXT)
    loader = "load_icl" if labelled else _LOADERS.get(task, "load_qa")
    demo = "item_template" if labelled else "demo_template"
    return Words(
        user=assigned(code, "user_template", place, inside=loader)[-1],
        lead=assigned(code, "system_template", place, inside=loader)[-1],
        demo=assigned(code, demo, place, inside=loader)[-1] if task != RANKED else "",
        passages=tuple(text for text in texts_in(code, loader, place) if text.endswith("{text}")),
    )
