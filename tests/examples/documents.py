"""Generated long samples and short conversations in the forms of real ones: LongAlign's messages, ShareGPT."""

import gzip
import json
from pathlib import Path

import numpy as np

from gateau_dagster.demo.language import ADJECTIVES, NOUNS, VERBS

SOURCES = ("report", "meeting")


def document(number: int, sentences: int) -> str:
    """English-like prose of `sentences` sentences with punctuation, capitals and paragraphs."""
    rng = np.random.default_rng(number)
    text = []
    for place in range(sentences):
        noun, target = rng.choice(NOUNS, size=2)
        verb, adjective = rng.choice(VERBS), rng.choice(ADJECTIVES)
        text.append(f"In {1900 + int(rng.integers(100))} the {adjective} {noun} {verb} the {target} — once more.")
        if place % 7 == 6:
            text.append("\n")
    return " ".join(text)


def record(number: int) -> dict[str, object]:
    """A LongAlign record: document, blank line and instruction in the user's turn."""
    text = document(number, sentences=20 + 4 * number)
    question = f"Which year stands in sentence {number + 1}?"
    answer = f"It is {text.split()[1]}, says the document."
    messages = [{"role": "user", "content": f"{text}\n\n{question}"}, {"role": "assistant", "content": answer}]
    return {"id": f"doc-{number:03d}", "source": SOURCES[number % 2], "messages": messages, "length": len(text)}


def write_long(path: Path, count: int) -> None:
    """`count` records as gzipped JSON lines."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record(number)) + "\n" for number in range(count))


def write_short_chat(path: Path, count: int) -> None:
    """`count` ShareGPT conversations in one JSON array."""
    turns = [
        [{"from": "human", "value": f"Who is number {number}?"}, {"from": "gpt", "value": document(500 + number, 1)}]
        for number in range(count)
    ]
    path.write_text(json.dumps([{"id": f"chat-{i}", "conversations": pair} for i, pair in enumerate(turns)]))
