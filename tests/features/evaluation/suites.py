"""Write small files in the published form of each benchmark of questions, and give right and wrong answers to them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from gateau_dagster.config import Config
from gateau_dagster.features.evaluation.benchmark import Materials, Question
from gateau_dagster.features.evaluation.benchmarks.longbench import LENGTHS, PROMPTS
from gateau_dagster.features.evaluation.judged import RatedBenchmark
from gateau_dagster.features.evaluation.registry import all_benchmarks
from tests.features.evaluation import mt_bench_files
from tests.features.evaluation.builders import JUDGE, project, write_jsonl
from tests.features.evaluation.ruler_files import write_documents, write_ruler

STOP = 30930


class Letters:
    """A tokenizer of one token a character; the full stop has LongAlign's number."""

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": [STOP if character == "." else ord(character) for character in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join("." if token == STOP else chr(token) for token in ids)


class Words:
    """A tokenizer of one token a word."""

    def __call__(self, text: str, **_: Any) -> Any:
        return {"input_ids": text.split()}


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A benchmark of questions.

    write: writes its files into a folder. options: of its section. origins: words of the instructions to get the files
    of an option, by option. unread: the fields of a file's records that need not be there, by file. of_others: files
    that only other benchmarks or tasks read. labels: the fields with a few values. ids: the field that tells records
    apart. right: an answer that is worth most.
    """

    write: Callable[[Path], object]
    options: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, Sequence[str]] = field(default_factory=dict)
    of_others: Sequence[str] = ()
    labels: Sequence[str] = ()
    ids: str = ""
    right: Callable[[Question], str] = lambda question: question.references[0]
    tokenizer: type | None = None


# LongBench, by its metrics and by a judge.


def longbench_row(number: int, *, answers: list[str], length: int | None = 10, **fields: Any) -> dict[str, Any]:
    common = {"context": f"context {number} {{braces}}", "input": f"question {number}", "answers": answers}
    return {**common, "length": length, "dataset": "x", "all_classes": None, "_id": f"id{number}", **fields}


def write_prompts(folder: Path, sets: Sequence[str], prompt: str = "{context}\nNow: {input}") -> None:
    folder.mkdir(exist_ok=True)
    (folder / PROMPTS).write_text(json.dumps({name: f"{name}\n{prompt}" for name in sets}))
    (folder / LENGTHS).write_text(json.dumps({name: 10 + len(name) for name in sets}))


def write_longbench(folder: Path) -> None:
    """Two rows each of three sets, and prompts for them."""
    rows = {
        "hotpotqa": [
            longbench_row(0, answers=["Paris", "the City of Light"]),
            longbench_row(1, answers=["7"], length=4000),
        ],
        "hotpotqa_e": [longbench_row(5, answers=["even"])],
        "trec": [longbench_row(2, answers=["Food"], length=9000, all_classes=["Food", "Date"])],
        "lcc": [longbench_row(3, answers=["return 1"], input="")],
        "unasked": [longbench_row(9, answers=["x"], dataset="qasper")],
    }
    for name, of_set in rows.items():
        write_jsonl(folder / "data" / f"{name}.jsonl", of_set)
    write_prompts(folder / "config", ["hotpotqa", "trec", "lcc", "qasper"])


def write_longbench_judged(folder: Path) -> None:
    """A question and a summary, and the judge's prompts."""
    for name in ("hotpotqa", "qmsum"):
        write_jsonl(folder / "data" / f"{name}.jsonl", [longbench_row(7, answers=["A {b}", "C's"], input="who?")])
    write_prompts(folder / "config", ["hotpotqa", "qmsum"])
    (folder / "qa.txt").write_text("Asked {}\nRight {}\nSaid {}\nRating: ")
    (folder / "sum.txt").write_text("Right {}\nSaid {}\nRating:")


# LongBench v2 and LongBench Pro.


V2_PROMPT = 'Read.\n<t>\n$DOC$\n</t>\n$Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\nSay "The correct answer is (x)".'


def longbench_v2_row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "_id": f"id{number}",
        "domain": "d",
        "sub_domain": "s",
        "difficulty": "easy",
        "length": "short",
        "question": f" why {number}?\n",
        **{f"choice_{letter}": f"{letter}{number} " for letter in "ABCD"},
        "answer": "A",
        "context": f"\ntext {number} ",
        **fields,
    }


def write_longbench_v2(folder: Path, rows: Sequence[Mapping[str, Any]] = ()) -> None:
    hard = longbench_v2_row(1, difficulty="hard", length="long", answer="D")
    given = [longbench_v2_row(0), hard, longbench_v2_row(2, length="medium", context="a $Q$ b")]
    write_jsonl(folder / "data.jsonl", rows or given)
    (folder / "0shot.txt").write_text(V2_PROMPT)


def longbench_pro_row(number: int, task: str = "T3.1", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"id{number}",
        "context": f" text {number}",
        "language": "English",
        "token_length": "8k",
        "primary_task": f"{task.partition('.')[0]}. Kind",
        "secondary_task": f"{task} Some Task",
        "contextual_requirement": "Full",
        "question_nonthinking": f"Which {number}? ",
        "question_thinking": f"Think: which {number}?",
        "answer": [f"Answer {number}"],
        "difficulty": "Hard",
        **fields,
    }


def write_longbench_pro(folder: Path, *rows: Mapping[str, Any]) -> None:
    labels = {"contextual_requirement": "Partial", "token_length": "256k", "difficulty": "Easy", "language": "Chinese"}
    given = [longbench_pro_row(0), longbench_pro_row(1, "T10.2", **labels), longbench_pro_row(2, "T4.1")]
    (folder / "longbench_pro.json").write_text(json.dumps(rows or given, ensure_ascii=False), encoding="utf-8")


# LongBench-Chat.


CHAT_PROMPT = "Q {}\nR {}\n1 {} [[{}]]\n2 {} [[{}]]\n3 {} [[{}]]\nNow {}\nRating: "
CASES: list[dict[str, Any]] = [
    {"idx": 1, "prompt": "A long document.\n\nWho {is} it?", "query": "Who {is} it?", "answer": "Ann"},
    {"idx": 2, "prompt": "很长的文件。\n是谁？", "query": "是谁？", "answer": "安"},
]
SHOTS = [[{"answer": f"{case} {shot}", "score": 2 * shot + 1} for shot in range(3)] for case in ("x", "y")]


def write_longbench_chat(folder: Path, *, cases: Any = CASES, shots: Any = SHOTS, prompt: str = CHAT_PROMPT) -> None:
    (folder / "test_cases.json").write_text(json.dumps(cases, ensure_ascii=False, indent=2))
    (folder / "few_shots.json").write_text(json.dumps(shots))
    (folder / "prompt_fs.txt").write_text(prompt)


# OpenAI's conversations and graphs.


ROLES = ("user", "user", "assistant", "user", "assistant", "user")


def mrcr_row(number: int, roles: Sequence[str] = ROLES, length: int = 10, **fields: Any) -> dict[str, Any]:
    said = [{"role": role, "content": f"{place} {{{number}}} ".ljust(length)} for place, role in enumerate(roles)]
    common = {"prompt": json.dumps(said), "answer": f"mArk{number}A poem.", "random_string_to_prepend": f"mArk{number}"}
    return {**common, "n_needles": 2, "desired_msg_index": 1, "total_messages": 6, "n_chars": 60, **fields}


def graphwalks_row(number: int, **fields: Any) -> dict[str, Any]:
    common = {"prompt": f"a -> b {{{number}}}\n", "answer_nodes": ["a", "b"], "problem_type": "bfs", "prompt_chars": 5}
    return {**common, "date_added": "02-27-2026", **fields}


def write_graphwalks(folder: Path) -> None:
    rows = [graphwalks_row(1, problem_type="parents", answer_nodes=[], prompt="x" * 4000), graphwalks_row(0)]
    write_jsonl(folder / "rows.jsonl", rows)


# NoLiMa.


FRAME = "Read:\n{haystack}\nAsked: {question}"
CHARACTERS = ["Ada", "Bo", "Cy"]


def nolima_row(name: str = "0401", **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "reasoning_type": "commonsense",
        "system_prompt": "",
        "task_template": FRAME,
        "needle": "{CHAR} grows {1}.",
        "questions": {"onehop": "Who eats {2}?", "twohop": "Who knows {3}?"},
        "character_set": CHARACTERS,
        "tests": {"T1": {"input_args": ["wheat", "bread", "mills"]}, "T2": {"input_args": ["vines", "grapes", "wine"]}},
        **fields,
    }


def write_nolima(folder: Path) -> None:
    """Two needles, and two books of lines of many lengths."""
    inverted = {"needle": "{1} grow where {CHAR} lives.", "questions": {"onehop": "{CHAR}, or who: {2}?"}}
    (folder / "set.json").write_text(json.dumps([nolima_row(), nolima_row("0402Inv", **inverted)]))
    (folder / "books").mkdir()
    for number in (1, 2):
        lines = ["abc d." * (number + place * 7 % 11) for place in range(60)]
        (folder / "books" / f"book_{number}.txt").write_text("\n".join(lines))


# HELMET.


HELMET_CODE = """
def load_qa(dataset):
    if bad:
        user_template = "Bad"
    else:
        user_template = "Read.\\n{demos}{context}\\nQ {question}"
    system_template = "A:"
    demo_template = "{documents}\\nQ {question}\\nA {answer}"
    passage_template = "Doc {title}: {text}"
def load_json_kv(path):
    user_template = "{context}\\nFind.\\n{demos}Key: {question}"
    system_template = "Value:"
    demo_template = "Key: {key}\\nValue:{value}"
def load_msmarco_rerank(path):
    user_template = "Rank.\\n{demos}{context}\\nQ {question}"
    system_template = "Ranking:"
    def update(sample):
        passage_template = "[ID: {id}] {title}: {text}" if titled else "[ID: {id}] {text}"
def load_icl(dataset):
    item_template = "{text}\\nis: {label}"
    user_template = "Only say \\"is: {{label}}\\".\\n{context}\\n\\n{question}"
    system_template = "is:"
"""
HELMET_TASKS = ["json_kv", "kilt_nq", "kilt_popqa_3", "msmarco_rerank_psg"]


def _passages(*texts: str) -> list[dict[str, Any]]:
    return [{"id": str(n), "title": f"T{n}", "text": text, "label": n} for n, text in enumerate(texts)]


def write_helmet(folder: Path) -> None:
    """Files in HELMET's form at one length, and labelled texts in the hub's parquet branch and in its main one."""
    (folder / "configs").mkdir()
    (folder / "data.py").write_text(HELMET_CODE)
    tasks = {
        "recall": [("json_kv", 100, "data/kv.jsonl", "")],
        "rag": [
            ("kilt_nq", 20, "data/nq.jsonl", "data/nq_demos.jsonl"),
            ("kilt_popqa_3", 20, "data/pop.jsonl", "data/pop.jsonl"),
        ],
        "rerank": [("msmarco_rerank_psg", 200, "data/rank.jsonl", "data/rank.jsonl")],
        "icl": [("icl_trec_coarse_8shot_balance", 20, "", ""), ("icl_nlu_6shot_balance", 20, "", "")],
    }
    names = ("datasets", "generation_max_length", "test_files", "demo_files")
    for name, rows in tasks.items():
        lists = {key: ",".join(map(str, column)) for key, column in zip(names, zip(*rows, strict=True), strict=True)}
        common = {"shots": 2, "stop_new_line": name != "recall", "max_test_samples": 100}
        for short, length in (("_short", 8192), ("", 131_072)):
            lengths = ",".join([str(length)] * len(rows))
            (folder / "configs" / f"{name}{short}.yaml").write_text(
                yaml.safe_dump({**lists, **common, "input_max_length": lengths})
            )
    key: dict[str, Any] = {"context": '{"k": "v"}', "question": "k", "answer": "v", "num_kvs": 1}
    read = [{"id": n, "question": f"q{n}", "answers": [f"answer {n}"], "ctxs": _passages("x")} for n in (1, 1, 2)]
    demos = [{"id": n, "question": f"d{n}", "answers": ["y", "z"], "ctxs": _passages("u", "w")} for n in (7, 8, 7)]
    records: dict[str, list[dict[str, Any]]] = {
        "kv": [{**key, "demos": [["a", "b"], ["c", "d"], ["e", "f"]]}],
        "nq": read,
        "nq_demos": demos,
        "pop": [{**read[2], "id": n, "s_pop": 10 ** (n + 1)} for n in (0.2, 1, 1.5, 5)],
        "rank": [{"qid": f"r{n}", "query": f"best {n}", "ctxs": _passages("low", "high")} for n in range(3)],
    }
    for name, rows in records.items():
        write_jsonl(folder / "data" / f"{name}.jsonl", rows)
    for split, count in {"train": 40, "test": 12}.items():
        rows = [{"text": f"{split} {n} of {n % 3}", "coarse_label": n % 3, "fine_label": 0} for n in range(count)]
        _write_parquet(folder / "sets" / "CogComp" / "trec" / "default" / split / "0000.parquet", rows)
    mixed = [{"text": f"nlu {n} of {n % 2}", "label": n % 2} for n in range(40)]
    nlu = folder / "sets" / "xingkunliuxtracta" / "nlu_evaluation_data" / "data"
    _write_parquet(nlu / "train-00000-of-00001.parquet", mixed)


def _write_parquet(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(file)


def _helmet_answer(question: Question) -> str:
    relevance = question.facts["relevance"]
    return " > ".join(sorted(relevance, key=relevance.__getitem__, reverse=True)) or question.references[0]


# LongAlign's needle.


JUDGE_CODE = """
USER_TEMPLATE = 'Asked {input}{criteria}Right {reference}\\nSaid {prediction}!'
SYSTEM_TEMPLATE = 'Judge.'
CRITERIA = {'accuracy': 'Score 1: no.'}
def get_criteria():
    cri = 'Look at:\\n'
    return cri
"""
PROMPT_CODE = """class P:
 def generate_prompt(self, context):
  return [{'role': 'system', 'content': 'Be {brief}.'},
   {'role': 'user', 'content': context + '\\n\\n' + f'Say: {self.question}'}]
"""


def write_needle(folder: Path) -> None:
    needle = folder / "needle"
    needle.mkdir()
    (needle / "config-prompt.yaml").write_text(
        'prompt:\n  needle: "\\nThe key is 7.\\n"\n  retrieval_question: "What is the key?"\n'
    )
    (needle / "prompt.py").write_text(PROMPT_CODE)
    (needle / "PaulGrahamEssays").mkdir()
    (needle / "PaulGrahamEssays" / "a.txt").write_text("the note . " * 300)
    (needle / "eval.py").write_text(JUDGE_CODE)
    (needle / "config-eval.yaml").write_text('prompt: {needle: "\\nIt is 7.\\n", retrieval_question: "Key?"}')


NEEDLE = {"official": "needle", "lengths": [260, 300], "depths": [50, 10], "answer_tokens": 9}


# RULER.


RULER_FILES = {"squad": "squad.json", "hotpotqa": "hotpotqa.json"}


def write_ruler_files(folder: Path) -> None:
    write_ruler(folder / "ruler")
    write_documents(folder)
    (folder / "essays").mkdir()
    (folder / "essays" / "one.txt").write_text("It was so. They said it.\nIt was not! " * 30)


_UNREAD = ("dataset", "all_classes", "_id")
SUITES: dict[str, Suite] = {
    "longbench": Suite(
        write=write_longbench,
        options={"data": "data", "prompts": "config", "sets": ["trec", "hotpotqa", "lcc"]},
        origins={"data": "LongBench", "prompts": "LongBench"},
        unread={"data/trec.jsonl": _UNREAD},
        ids="_id",
    ),
    "longbench_judged": Suite(
        write=write_longbench_judged,
        options={
            "data": "data",
            "prompts": "config",
            "sets": ["hotpotqa", "qmsum"],
            "question_prompt": "qa.txt",
            "summary_prompt": "sum.txt",
        },
        origins={"data": "LongBench", "prompts": "LongBench", "question_prompt": "GATEAU", "summary_prompt": "GATEAU"},
        unread={"data/qmsum.jsonl": _UNREAD},
        ids="_id",
    ),
    "longbench_v2": Suite(
        write=write_longbench_v2,
        options={"data": "data.jsonl", "prompt": "0shot.txt"},
        origins={"data": "resolve/main/data.json", "prompt": "0shot.txt"},
        unread={"data.jsonl": ("domain", "sub_domain")},
        labels=("difficulty", "length", "answer"),
        ids="_id",
        right=lambda question: f"The correct answer is ({question.references[0]})",
    ),
    "longbench_pro": Suite(
        write=write_longbench_pro,
        options={"data": "longbench_pro.json"},
        origins={"data": "datasets/caskcsg/LongBench-Pro"},
        unread={"longbench_pro.json": ("question_thinking",)},
        labels=("contextual_requirement", "token_length", "difficulty", "language", "secondary_task"),
        ids="id",
        right=lambda question: "Well.\n[Answer]\n" + "\n".join(question.references),
    ),
    "longbench_chat": Suite(
        write=write_longbench_chat,
        options={"cases": "test_cases.json", "few_shots": "few_shots.json", "prompt": "prompt_fs.txt"},
        origins=dict.fromkeys(("cases", "few_shots", "prompt"), "THUDM/LongAlign"),
        unread={"test_cases.json": ()},
        ids="idx",
    ),
    "mrcr": Suite(
        write=lambda folder: write_jsonl(folder / "rows.jsonl", [mrcr_row(0), mrcr_row(1, n_needles=8)]),
        options={"data": "rows.jsonl"},
        origins={"data": "datasets/openai/mrcr"},
        unread={"rows.jsonl": ("desired_msg_index", "total_messages", "n_chars")},
    ),
    "graphwalks": Suite(
        write=write_graphwalks,
        options={"data": "rows.jsonl"},
        origins={"data": "openai/graphwalks/resolve/main"},
        unread={"rows.jsonl": ("prompt_chars", "date_added")},
        labels=("problem_type",),
        right=lambda question: f"So.\nFinal Answer: [{', '.join(question.references)}]",
    ),
    "nolima": Suite(
        write=write_nolima,
        options={"needles": "set.json", "haystack": "books", "lengths": [250, 1000], "placements": 6},
        origins={"needles": "amodaresi/NoLiMa", "haystack": "rand_shuffle"},
        unread={"set.json": ("reasoning_type",)},
        ids="id",
        tokenizer=Letters,
    ),
    "helmet": Suite(
        write=write_helmet,
        options={"official": ".", "lengths": [8192], "tasks": [*HELMET_TASKS, "icl_nlu"], "data_sets": "sets"},
        unread={"data/kv.jsonl": ("num_kvs",), "data/nq.jsonl": ("id",), "data/rank.jsonl": ("qid",)},
        of_others=["sets/CogComp/trec/default/test/0000.parquet", "sets/CogComp/trec/default/train/0000.parquet"],
        right=_helmet_answer,
    ),
    "ruler": Suite(
        write=write_ruler_files,
        options={"official": "ruler", "lengths": [700], "samples": 2, **RULER_FILES},
        of_others=["essays/one.txt"],
        right=lambda question: ", ".join(question.references),
        tokenizer=Words,
    ),
    "mt_bench": Suite(
        write=mt_bench_files.write_files,
        options={name: f"{name}.jsonl" for name in ("questions", "references", "prompts")},
        origins=dict.fromkeys(("questions", "references", "prompts"), "FastChat"),
        unread={"questions.jsonl": ("reference",), "references.jsonl": (), "prompts.jsonl": ()},
        ids="question_id",
    ),
    "generated_needle": Suite(
        write=write_needle, options=NEEDLE, of_others=["needle/eval.py", "needle/config-eval.yaml"], tokenizer=Letters
    ),
    "generated_needle_judged": Suite(write=write_needle, options=NEEDLE, tokenizer=Letters),
}


def configured(name: str, folder: Path, **options: Any) -> Config:
    """A project that asks for the benchmark, whose files are in the folder."""
    judge = JUDGE if issubclass(all_benchmarks()[name], RatedBenchmark) else None
    return project(folder, name, judge=judge, **{**SUITES[name].options, **options})


def written(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the benchmark's files, and let its tokenizer count the lengths of questions."""
    suite = SUITES[name]
    suite.write(folder)
    if suite.tokenizer is not None:
        tokenizer = suite.tokenizer()
        monkeypatch.setattr(Materials, "base_tokenizer", lambda _: tokenizer)
    return folder


def folder_of(name: str) -> Any:
    """Return a fixture: the folder that holds the benchmark's files."""

    @pytest.fixture
    def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        return written(name, tmp_path, monkeypatch)

    return folder
