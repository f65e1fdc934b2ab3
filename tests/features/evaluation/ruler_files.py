"""Files in the form in which RULER publishes its tasks, with words of our own; and its code, where that is."""

import json
import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.features.evaluation import official

_NEEDLES = {
    "type_needle_k": "words",
    "type_needle_v": "numbers",
    "num_needle_k": 1,
    "num_needle_v": 1,
    "num_needle_q": 1,
}
ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "niah_single_1": ("niah", {"type_haystack": "noise", **_NEEDLES}),
    "niah_multikey_2": ("niah", {"type_haystack": "needle", **_NEEDLES}),
    "niah_multikey_3": (
        "niah",
        {"type_haystack": "needle", **_NEEDLES, "type_needle_k": "uuids", "type_needle_v": "uuids"},
    ),
    "niah_multivalue": ("niah", {"type_haystack": "essay", **_NEEDLES, "num_needle_v": 4}),
    "niah_multiquery": ("niah", {"type_haystack": "essay", **_NEEDLES, "num_needle_q": 4}),
    "vt": ("variable_tracking", {"type_haystack": "noise", "num_chains": 1, "num_hops": 4}),
    "cwe": ("common_words_extraction", {"freq_cw": 30, "freq_ucw": 3, "num_cw": 10}),
    "fwe": ("freq_words_extraction", {"alpha": 2.0}),
    "qa_1": ("qa", {"dataset": "squad"}),
    "qa_2": ("qa", {"dataset": "hotpotqa"}),
}
_TASKS = {
    "niah": (
        60,
        "Some {type_needle_v} are here.\n{context}\nWhat are all the {type_needle_v} of {query}?",
        " They are",
    ),
    "variable_tracking": (30, "Track.\n\n{context}\nWhich are {query}?", " So {num_v} are: "),
    "common_words_extraction": (40, "A list.\n{context}\nWhich are the 10?", " These:"),
    "freq_words_extraction": (50, "Coded. {context}\nWhich three?", " These:"),
    "qa": (32, "Documents.\n{context}\nQuestion: {query}", " It is:"),
}


def write_ruler(folder: Path) -> None:
    """constants.py, niah.py and synthetic.yaml, where the repository has them."""
    synthetic = folder / "scripts" / "data" / "synthetic"
    synthetic.mkdir(parents=True)
    kinds = {
        name: {"tokens_to_generate": tokens, "template": template, "answer_prefix": prefix}
        for name, (tokens, template, prefix) in _TASKS.items()
    }
    (synthetic / "constants.py").write_text(f"TASKS = {kinds!r}\n")
    (synthetic / "niah.py").write_text(
        'needle = "The {type_needle_v} of {key} is {value}."\n'
        'if 1:\n    haystack = split()\nelse:\n    haystack = "Hay."\n'
    )
    (synthetic / "qa.py").write_text('DOCUMENT_PROMPT = "No. {i}:\\n{document}"\n')
    tasks = {name: {"task": kind, "args": arguments} for name, (kind, arguments) in ARGUMENTS.items()}
    (folder / "scripts" / "synthetic.yaml").write_text(yaml.safe_dump(tasks))


def write_documents(folder: Path) -> None:
    """squad.json and hotpotqa.json in their published forms: three articles of ten paragraphs, and thirty passages."""

    def said(name: str) -> str:
        return f"{name} says so: " + " ".join(f"{name}{place}" for place in range(30))

    articles = []
    for article in "abc":
        paragraphs = []
        for number in range(10):
            name, answers = f"{article}{number}", [{"text": f"{article}{number}7"}, {"text": f"{article}{number}8"}]
            asked = [
                {"question": f"What does {name} say?", "answers": answers, "is_impossible": False},
                {"question": "What does nobody say?", "answers": [], "is_impossible": True},
            ]
            paragraphs.append({"context": said(name), "qas": asked})
        articles.append({"title": article, "paragraphs": paragraphs})
    (folder / "squad.json").write_text(json.dumps({"version": "v2.0", "data": articles}))
    passages = [(f"T{number}", [f"{said(f'h{number}')}.", " End."]) for number in range(30)]
    rows = [
        {"question": f"What says {place}?", "answer": f"h{place}7", "context": passages[place : place + 4]}
        for place in range(20)
    ]
    (folder / "hotpotqa.json").write_text(json.dumps(rows))


def published_sample(task: str, folder: Path, *, length: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A sample of the published code, run from a copy in `folder`; a word is a token."""
    data = folder / "data"
    shutil.copytree(official.code("RULER") / "scripts" / "data", data, dirs_exist_ok=True)
    (data / "synthetic" / "json" / "english_words.json").write_text(json.dumps({"1": "word"}))
    write_documents(data / "synthetic" / "json")
    tasks = yaml.safe_load((official.code("RULER") / "scripts" / "synthetic.yaml").read_text())
    made: list[dict[str, Any]] = []
    stubs: dict[str, Any] = {
        "tokenizer": {"select_tokenizer": lambda *_: SimpleNamespace(text_to_tokens=str.split)},
        "manifest_utils": {"write_manifest": lambda _, rows: made.extend(rows)},
        "nltk": {},
        "nltk__tokenize": {"sent_tokenize": None},
    }
    module = official.loaded(data / "synthetic" / "constants.py", monkeypatch, name="constants", **stubs)
    constants = module.TASKS[tasks[task]["task"]]
    template = constants["template"] + constants["answer_prefix"]
    arguments = {
        "save_dir": folder,
        "save_name": task,
        "tokenizer_path": "x",
        "tokenizer_type": "hf",
        "num_samples": 2,
        "max_seq_length": length,
        "tokens_to_generate": constants["tokens_to_generate"],
        "template": template,
        **tasks[task]["args"],
    }
    monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)  # one of its lines has no place for a value
    given = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["script", *given])
    official.loaded(data / "synthetic" / f"{tasks[task]['task']}.py", monkeypatch).main()
    return made[0]
