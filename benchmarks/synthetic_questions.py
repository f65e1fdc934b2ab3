"""Make long samples with the feature `synthesis`, by a scripted generator that asks questions of Natural Questions.

    .venv/bin/python benchmarks/synthetic_questions.py --nq natural_questions.jsonl.gz --model MODEL --tokens 4096 \
        --count 160 --folder build/benchmarks/synthesis --out build/benchmarks/synthesis.jsonl

No language model writes anything here: people wrote the questions and answers. A document is a row of passages of
Natural Questions. The generator, a server on this machine, is shown two passages that are far apart, finds the question
that each of them answers, and asks both in one sentence. theta_B (--model) then checks the candidates, as in
`gateau run`. So the evidence of every sample has known places.

--out has all candidates with a question, in the product's explicit form. Their source is `accepted`, or `refused` with
the check. `far` is the number of evidence passages that are wholly outside a prompt of --window tokens.
"""

import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml
from common import benchmark_parser, show, table
from real_text import write_samples
from real_text_passages import MOST_WORDS, Question, Room, normalised, page_with, read_questions

from gateau_dagster.features.synthesis import CHECKS_TABLE, CONTEXTS_TABLE, QUESTIONS_TABLE
from gateau_dagster.features.synthesis.config import SYNTHETIC_SAMPLES
from gateau_dagster.features.synthesis.scripted_generator import ScriptedGenerator, serving
from gateau_dagster.models.prompt import open_tokenizer
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project

_PASSAGE = re.compile(r"\[Passage \d+\]\n(.*?)\n\[End of passage \d+\]", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_FRAME = 256  # tokens of the instruction, the response and the template's words


class QuestionGenerator(ScriptedGenerator):
    """The server: for two passages it replies with the questions that they answer, or with none."""

    def __init__(self, questions: Sequence[Question]) -> None:
        super().__init__()
        self._quotes = [(quote, each) for each in questions if (quote := quotation(each))]
        self._answers: dict[str, str] = {}

    def reply(self, body: dict[str, Any]) -> str:
        """Return the reply to a request."""
        prompt = body["messages"][-1]["content"]
        if not prompt.startswith("Below are"):
            return self._answers[prompt.rpartition("Question: ")[2]]
        known = [
            next(((quote, each) for quote, each in self._quotes if quote in shown), None)
            for shown in _PASSAGE.findall(prompt)
        ]
        if None in known:
            return json.dumps({"question": "", "answer": "", "evidence": []})
        both = [each for each in known if each is not None]
        question = f"{', and '.join(each.text for _, each in both)}?"
        self._answers[question] = "; ".join(each.answers[0] for _, each in both)
        return json.dumps({
            "question": question, "answer": self._answers[question], "evidence": [quote for quote, _ in both],
        })  # fmt: skip


def quotation(question: Question) -> str | None:
    """Return the first sentence of the passage with the first answer; None without one, or if the answer is long."""
    answer = normalised(question.answers[0])
    if not 0 < len(answer.split()) <= MOST_WORDS:
        return None
    return next((each for each in _SENTENCE.split(question.passage) if answer in normalised(each)), None)


def write_inputs(options: argparse.Namespace, questions: Sequence[Question], port: int) -> Path:
    """Write documents and configuration; return its file."""
    folder = options.folder / "documents"
    folder.mkdir(parents=True, exist_ok=True)
    passages = [f"{each.title}: {each.passage}" for each in dict.fromkeys(questions)]
    Random(0).shuffle(passages)
    for number in range(0, len(passages), options.passages):
        text = "\n\n".join(passages[number : number + options.passages])
        (folder / f"{number:05d}.txt").write_text(text, encoding="utf-8")
    generator = {"base_url": f"http://127.0.0.1:{port}/v1", "model": "scripted", "key": None, "concurrency": 1}
    model = {"path": str(Path(options.model).resolve())}
    content = {
        "storage": {"root": "store"},
        "synthesis": {
            "documents": "documents/*.txt", "count": options.count, "shards": 1, "lengths": {options.tokens: 1.0},
            "kinds": {"two_passages": 1.0}, "generator": generator,
        },
        "long_sft": {"path": "synthetic:", "shards": 1},
        "models": {"short": {**model, "context": "window", "window": options.window}, "long": model},
        "scoring": {"max_length": options.tokens + _FRAME, "dtype": "bfloat16"},
    }  # fmt: skip
    file = options.folder / "gateau.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def candidates(file: Path, room: Room) -> Iterator[dict[str, Any]]:
    """Yield the candidates that have a question, with what became of them."""
    state = state_of(config=load_project(file))
    asked, contexts, checks = (state.read(table) for table in (QUESTIONS_TABLE, CONTEXTS_TABLE, CHECKS_TABLE))
    rows = asked.join(contexts, on="sample_id").join(checks.select("sample_id", "reason"), on="sample_id")
    for row in rows.filter(rows["question"] != "").sort("sample_id").iter_rows(named=True):
        texts = {"context": row["context"], "instruction": row["question"], "response": row["answer"]}
        visible = room.visible(texts["instruction"], texts["response"])
        page = page_with(row["context"], [(each["start"], each["end"]) for each in row["positions"]], room, visible)
        source = f"refused: {row['reason']}" if row["reason"] else "accepted"
        far = sum(end <= page.border for _, end in page.evidence)
        yield {"id": row["sample_id"], "source": source, **texts, "far": far, "tokens": page.tokens}


def parse(given: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = benchmark_parser(__doc__, "JSON lines of the candidates", required=True)
    add = parser.add_argument
    add("--nq", type=Path, required=True, help="questions with passages")
    add("--model", required=True, help="folder or hub name of theta_B, which checks the candidates")
    add("--tokens", type=int, default=4096, help="of a context, at most")
    add("--window", type=int, default=1024, help="of theta_A, in tokens of the prompt")
    add("--count", type=int, default=160, help="candidates")
    add("--passages", type=int, default=40, help="of a document")
    add("--folder", type=Path, default=Path("build/benchmarks/synthesis"), help="for documents and store")
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> int:
    """Parse, make, write, and print what became of the candidates."""
    options = parse(given)
    questions = read_questions(options.nq)
    with serving(QuestionGenerator(questions)) as server:
        file = write_inputs(options, questions, server.server_address[1])
        command = [sys.executable, "-m", "gateau_dagster.cli", "run", "--config", str(file)]
        subprocess.run([*command, "--until", SYNTHETIC_SAMPLES], check=True)
    room = Room(tokenizer=open_tokenizer(options.model), tokens=options.tokens, window=options.window)
    made = [*candidates(file, room)]
    write_samples(made, options.out)
    counts = Counter((each["source"], each["far"]) for each in made)
    show(table(["candidates", "far passages", "number"], [[*what, count] for what, count in sorted(counts.items())]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
