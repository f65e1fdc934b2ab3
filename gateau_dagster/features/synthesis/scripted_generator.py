"""Write documents of the demo's language, and serve a scripted generator that asks about them, honestly or not.

The server speaks OpenAI's interface. What it does with a prompt depends on the prompt alone, but a duplicate repeats
the last honest question about its document. So runs are equal if their requests come one at a time, in the same order.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, get_args

import numpy as np

from gateau_dagster.features.demo.language import (
    ATTRIBUTES,
    NOUNS,
    VALUES,
    Fact,
    document,
    fact_words,
    random_facts,
    recall_instruction,
    recall_response,
    tell_instruction,
    tell_response,
)
from gateau_dagster.features.synthesis.config import Kind

CHEATS = ("one_passage", "in_question", "world_knowledge", "wrong_answer", "no_evidence", "duplicate")
"""The ways of a sample that does not need its context: the answer rests on one passage, is in the question, needs no
context, is wrong, its evidence is not in the text, or the question was asked before."""
HONEST = "honest"
_SENTENCES_OF_A_FACT = 2
_FACT = re.compile(r"note (\S+) (\S+) \.")
_PASSAGE = re.compile(r"\[Passage \d+\]\n(.*?)\n\[End of passage \d+\]", re.DOTALL)
_DOCUMENT = re.compile(r"\[Document\]\n(.*?)\n\[End of document\]", re.DOTALL)
_QUESTION = re.compile(r"Question: (.*)")
_REVERSED = ("compare", "order")


def demo_document(seed: int) -> str:
    """Return about 640 words: every attribute once, a fact after every other sentence."""
    rng = np.random.default_rng(seed)
    facts = random_facts(rng, len(ATTRIBUTES))
    places = {_SENTENCES_OF_A_FACT * (place + 1): [fact] for place, fact in enumerate(facts)}
    return " ".join(document(rng, _SENTENCES_OF_A_FACT * len(facts), places))


def facts_in(text: str) -> list[Fact]:
    """Return the facts of a text, in order."""
    return [Fact(attribute=name, value=value) for name, value in _FACT.findall(text)]


def manner_of(prompt: str, share: float) -> str:
    """Return the behaviour of the generator on a prompt: one of CHEATS for a `share` of the prompts, else HONEST."""
    number = int(hashlib.sha256(prompt.encode()).hexdigest()[:12], 16)
    if number % 1000 >= round(1000 * share):
        return HONEST
    return CHEATS[number // 1000 % len(CHEATS)]


def question_reply(prompt: str, manner: str, before: str = "") -> str:
    """Return the JSON reply about the passages of a prompt; a question without text where one of them has no fact.

    before: an earlier honest reply about the document, whose question a duplicate repeats; without one it has no text.
    """
    passages = [facts_in(each) for each in _PASSAGE.findall(prompt)]
    if not all(passages):
        return _reply([], "", "", [])
    backwards = any(_is_task(prompt, kind) for kind in _REVERSED)
    evidence = [" ".join(fact_words(each[0])) for each in passages]
    facts = [each[0] for each in passages]
    if manner == "duplicate":
        earlier = json.loads(before or _reply(facts, "", "", evidence))
        return _reply(facts, earlier["question"], earlier["answer"], evidence)
    asked = [facts[0]] if manner == "one_passage" else facts[::-1] if backwards else facts
    question, answer = recall_instruction(asked), recall_response(asked)
    if manner == "in_question":
        question = [*question, "about", *answer]
    elif manner == "world_knowledge":
        rng = np.random.default_rng(int(hashlib.sha256(prompt.encode()).hexdigest()[:8], 16))
        noun = NOUNS[int(rng.integers(len(NOUNS)))]
        question, answer = tell_instruction(noun), tell_response(rng, noun, 1)
    elif manner == "wrong_answer":
        last = asked[-1]
        values = VALUES[last.attribute]
        other = values[(values.index(last.value) + 1) % len(values)]
        answer = recall_response([*asked[:-1], Fact(attribute=last.attribute, value=other)])
    elif manner == "no_evidence":
        evidence[-1] = evidence[-1].replace("note", "notes")
    return _reply(facts, " ".join(question), " ".join(answer), evidence)


def _is_task(prompt: str, kind: str) -> bool:
    return {"compare": "compares something", "order": "asks for the order"}[kind] in prompt


def _reply(facts: Sequence[Fact], question: str, answer: str, evidence: Sequence[str]) -> str:
    said = {"question": question, "answer": answer, "evidence": [*evidence]}
    return json.dumps({**said, "reasoning": f"{len(facts)} facts of the passages" if facts else ""})


def answer_reply(prompt: str) -> str:
    """Return the answer to the question of a prompt from its passages, or from what it shows of a document."""
    asked = _QUESTION.findall(prompt)[-1].split()
    facts = {each.attribute: each for each in facts_in(prompt)}
    found = [facts[name] for name in asked if name in facts]
    return " ".join(recall_response(found)) or "unknown"


def own_question(text: str) -> str:
    """Return the continuation of a document and the opening of a user turn: a question about two of its facts."""
    facts = facts_in(text)
    if len(facts) < 2:
        return "\n"
    number = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    first = number % (len(facts) // 2)
    return f" {' '.join(recall_instruction([facts[first], facts[first + len(facts) // 2]]))}\nAssistant:"


def own_answer(prompt: str) -> str:
    """Return the JSON answer to an own question, with its evidence."""
    asked = _QUESTION.findall(prompt)[0].split()
    facts = {each.attribute: each for text in _DOCUMENT.findall(prompt) for each in facts_in(text)}
    found = [facts[name] for name in asked if name in facts]
    return _reply(found, "", " ".join(recall_response(found)), [" ".join(fact_words(each)) for each in found])


def chunk_reply(prompt: str) -> str:
    """Return the JSON reply about one chunk, as ProLong's recipe asks for it."""
    facts = facts_in(prompt)[:1]
    return _reply(facts, " ".join(recall_instruction(facts)) if facts else "", " ".join(recall_response(facts)), [])


def summary_reply(prompt: str) -> str:
    """Return a summary: the first two facts of a text."""
    return " ".join(word for fact in facts_in(prompt)[:2] for word in fact_words(fact)) or "nothing is noted ."


class ScriptedGenerator(ThreadingHTTPServer):
    """The server. `cheats`: the share of prompts that are answered dishonestly. `prompts`: those received.

    documents: their texts, by which a duplicate finds the earlier questions about the same document.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, cheats: float = 0.0, port: int = 0, documents: Sequence[str] = ()) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.cheats, self.documents, self.lock = cheats, documents, Lock()
        self.prompts: list[str] = []
        self.honest: dict[int, str] = {}

    @property
    def base_url(self) -> str:
        """Return the address for `synthesis.generator.base_url`."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def reply(self, body: dict[str, Any]) -> str:
        """Return the reply to a request."""
        if "prompt" in body:
            return own_question(body["prompt"])
        prompt = body["messages"][-1]["content"]
        with self.lock:
            self.prompts.append(prompt)
        if _DOCUMENT.search(prompt):
            return own_answer(prompt)
        if prompt.startswith(("Summarise", "Below are summaries")):
            return summary_reply(prompt)
        if prompt.startswith("Below is a part"):
            return chunk_reply(prompt)
        if not prompt.startswith("Below are"):
            return answer_reply(prompt)
        manner = manner_of(prompt, self.cheats)
        shown = _PASSAGE.findall(prompt)
        document = next((place for place, text in enumerate(self.documents) if shown[0] in text), -1)
        with self.lock:
            said = question_reply(prompt, manner, self.honest.get(document, ""))
            if manner == HONEST and document >= 0 and json.loads(said)["question"]:
                self.honest[document] = said
        return said


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedGenerator  # type: ignore[assignment]

    def do_POST(self) -> None:
        """Answer a completion of a chat or of a text."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = self.server.reply(body)
        said = {"text": text} if "prompt" in body else {"message": {"role": "assistant", "content": text}}
        words = len(json.dumps(body).split())
        usage = {"prompt_tokens": words, "completion_tokens": len(text.split()), "total_tokens": words}
        content = json.dumps({"choices": [{"index": 0, "finish_reason": "stop", **said}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


@contextmanager
def serving(generator: ScriptedGenerator) -> Iterator[ScriptedGenerator]:
    """Serve within the block."""
    thread = Thread(target=generator.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield generator
    finally:
        generator.shutdown()
        generator.server_close()
        thread.join()


assert {*_REVERSED} < {*get_args(Kind)}
