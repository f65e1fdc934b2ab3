"""Ask the generator for a question about passages, its answer and its evidence, and read the replies."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeGuard

import polars as pl

from gateau_dagster.costs import Usage
from gateau_dagster.data.near_duplicates import normalised
from gateau_dagster.data.sample import Reject
from gateau_dagster.features.evaluation.benchmark import JudgeRequest
from gateau_dagster.features.evaluation.grading import without_thoughts
from gateau_dagster.features.evaluation.judging.asking import Asking, cost_sentence
from gateau_dagster.features.evaluation.judging.replies import BYTES_OF_A_TOKEN, PROMPT, Judge, Replies, ServerCall
from gateau_dagster.features.evaluation.server_client import UnansweredError, least_tokens, unread_tokens
from gateau_dagster.features.synthesis.config import GeneratorConfig, SynthesisConfig
from gateau_dagster.features.synthesis.passages import PASSAGES, SourceDocument, TextPassage, split_passages
from gateau_dagster.progress import Progress, silent
from gateau_dagster.tables import SAMPLE_ID, UNREAD, Column, schema

# Raise it when the same passages give other requests, or the same replies other questions.
QUESTIONS_CODE_VERSION = "4"
QUESTIONS = (
    *PASSAGES,
    Column(name="question", dtype=pl.String(), description="The question; empty without a usable one."),
    Column(name="answer", dtype=pl.String(), description="The generator's answer."),
    Column(
        name="evidence", dtype=pl.List(pl.String()), description="What it copied from each passage, in their order."
    ),
    Column(name="reasoning", dtype=pl.String(), description="How the answer follows, by the generator."),
    Column(
        name="fault",
        dtype=pl.String(),
        description="Why there is no question: unreadable, declined, too_long or duplicate; or empty.",
    ),
)
PROMPT_TOKENS = Column(
    name="prompt_tokens",
    dtype=pl.Int32(),
    description="Tokens that the generator read of a prompt that it did not read whole; as unread_tokens.",
    nullable=True,
)
UNREADABLE, DECLINED, TOO_LONG, DUPLICATE = "unreadable", "declined", "too_long", "duplicate"
MOST_LETTERS = 32_768
"""Most characters of a question, an answer or a piece of evidence; longer ones are refused."""
_TEMPERATURE = 0.7
_AGAIN = 1  # requests after an unreadable reply
IDEOGRAPHS = "\u3040-\u309f\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Letters that are written without blanks between words: Chinese characters and hiragana."""
_LETTER = f"[^\\W_{IDEOGRAPHS}]"
_GROUP = 8  # summaries that are summarised together
_TASKS = {
    "two_passages": "Write one question whose answer combines a fact of the first passage with a fact of the second.",
    "compare": "Write one question that compares something in the first passage with something in the second.",
    "count": "Write one question that asks how many things of a kind there are, counted over all passages.",
    "order": "Write one question that asks for the order in which things of the passages occur or are told.",
    "summary": "Write one request to summarise what the document says about a subject that all passages treat.",
}
_RULES = """Rules:
- Nobody can answer without every passage: leaving out one of them makes the answer impossible.
- The question does not mention passages, and it does not contain the answer. It is clear to a reader of the whole \
document.
- The answer is short{length}, and follows from the passages alone, not from general knowledge.
- The evidence has one piece for each passage, in their order, copied word for word.
- If the passages allow no such question, give an empty question."""
_REPLY = 'Reply with JSON alone: {"question": "…", "answer": "…", "evidence": ["…", "…"], "reasoning": "…"}'
_SELF = """Answer the question from the document below, in a few words. Copy the evidence word for word: each \
sentence of the document that the answer rests on. If the document does not answer it, give an empty answer.
Reply with JSON alone: {"answer": "…", "evidence": ["…", "…"], "reasoning": "…"}"""
_FROM_PASSAGES = "Answer the question from the text below. Reply with the answer alone, in as few words as possible."
_CLOSED = "Answer the question. Reply with the answer alone, in as few words as possible."
# ProLong's prompt asks for the same in other words (its table 16), but is not licensed.
_PROLONG = """Below is a part of a document. Ask one specific and interesting question that only this part answers, \
and answer it. Both must be clear to a reader of the whole document, so neither mentions this part. The answer is \
concise, and quotes the document where that helps.
Reply with JSON alone: {"question": "…", "answer": "…", "reasoning": "…"}"""
_SUMMARISE = "Summarise the text below in one paragraph. Reply with the summary alone."
_JOIN = (
    "Below are summaries of consecutive parts of a document. Write one summary of all. Reply with the summary alone."
)
_SUMMARY_REQUESTS = ("Summarise the document.", "Write a summary of the text above.", "What is this document about?")


@dataclass(frozen=True, kw_only=True)
class GeneratorCall:
    """A request about a candidate."""

    sample_id: str
    asked: ServerCall


@dataclass(frozen=True, kw_only=True)
class Written:
    """A question with its answer, as the generator wrote them."""

    question: str
    answer: str
    evidence: tuple[str, ...]
    reasoning: str


@dataclass(kw_only=True)
class Generating:
    """The generator: its server, its kept replies, and the requests paid in this process.

    unanswered: the candidates without a reply, with the reasons; another try may help. unread: the candidates with an
    unreadable last reply, with the reply. partly_read: the candidates with a prompt that the server read only in part,
    with the least number of tokens sent and the number read.
    """

    settings: GeneratorConfig
    judge: Judge
    replies: Replies
    progress: Progress = silent
    paid: Usage = field(default_factory=Usage)
    unanswered: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    partly_read: dict[str, tuple[int, int]] = field(default_factory=dict)

    def texts(self, wanted: Sequence[GeneratorCall]) -> dict[str, str]:
        """Return the replies by candidate; candidates without a reply become `unanswered`. For errors see Asking."""
        return self.read(wanted, parse=lambda text: text, again=0)

    def read(
        self,
        wanted: Sequence[GeneratorCall],
        parse: Callable[[str], Any],
        *,
        again: int = _AGAIN,
        noun: str = "replies",
    ) -> dict[str, Any]:
        """Return the parsed replies by candidate, without thoughts; None for a reply that `parse` cannot read."""
        asking: Asking[GeneratorCall, Any] = Asking(
            lambda text: parse(without_thoughts(text) or ""), again, self.judge, self.replies, self.settings
        )
        kept = sum(each.asked in self.replies for each in wanted)
        found: dict[str, Any] = {}
        done, answered = 0, False
        self.progress(0, len(wanted), noun, f"{kept:,} known before")
        for result in asking.results(wanted):
            if result is not None:
                each, made = result
                done += 1
                if isinstance(made, UnansweredError):
                    self.unanswered[each.sample_id] = str(made)
                else:
                    answered = True
                    self._note_unread(each, made.reply.prompt_tokens)
                    found[each.sample_id] = made.value
                    if made.value is None:
                        self.unread[each.sample_id] = made.reply.text
            spent = f"{cost_sentence(self.settings, asking.account.new)} so far"
            self.progress(done, len(wanted), noun, ", ".join(filter(None, [spent, self.judge.under_way()])))
        if wanted and not answered:
            asking.patience.check()
        self.paid += asking.account.new
        return found

    def _note_unread(self, asked: GeneratorCall, read: int) -> None:
        least = sum(least_tokens(message["content"]) for message in asked.asked.messages)
        if read and unread_tokens(least, read):
            self.partly_read[asked.sample_id.partition("#")[0]] = (least, read)


def call(
    settings: GeneratorConfig,
    sample_id: str,
    text: str,
    *,
    repeat: int = 0,
    prompt: bool = False,
    json_mode: bool = False,
) -> GeneratorCall:
    """Return a request with this text as a user turn or, with `prompt`, as a text that the server continues."""
    messages = [{"role": PROMPT if prompt else "user", "content": text}]
    request = JudgeRequest(
        question_id=sample_id,
        turn=0,
        messages=messages,
        max_tokens=settings.max_tokens,
        temperature=_TEMPERATURE,
        json_mode=json_mode,
    )
    return GeneratorCall(sample_id=sample_id, asked=ServerCall.of(settings, request, repeat))


def numbered(passages: Sequence[str]) -> str:
    """Return the passages in the form that prompts use."""
    return "\n\n".join(
        f"[Passage {number}]\n{text}\n[End of passage {number}]" for number, text in enumerate(passages, start=1)
    )


def question_prompt(kind: str, passages: Sequence[str]) -> str:
    """Return the prompt for a question about passages. The generator sees nothing else of the document."""
    if kind.startswith("prolong"):
        return "\n\n".join([_PROLONG, *passages])
    opening = f"Below are {len(passages)} passages of one document, far apart. {_TASKS[kind]}"
    rules = _RULES.format(length=": two to four sentences" if kind == "summary" else ": a few words")
    return "\n\n".join([opening, rules, _REPLY, numbered(passages)])


def own_question_prompt(settings: GeneratorConfig, text: str) -> str:
    """Return the text for the server to continue with a question: the document, as far as it fits, and an opening."""
    return _beginning(settings, text, settings.opening) + settings.opening


def own_answer_prompt(settings: GeneratorConfig, text: str, question: str) -> str:
    """Return the prompt for the answer to a question that the generator wrote itself."""
    shown = _beginning(settings, text, _SELF, question)
    return "\n\n".join([_SELF, f"Question: {question}", f"[Document]\n{shown}\n[End of document]"])


def _beginning(settings: GeneratorConfig, text: str, *others: str) -> str:
    # In bytes, not letters, because a Chinese token has about as many bytes as an English one. No tokenizer of the
    # generator is known.
    room = (settings.window - settings.max_tokens) * BYTES_OF_A_TOKEN
    room -= sum(len(each.encode(errors="surrogatepass")) for each in others)
    return text.encode(errors="surrogatepass")[: max(0, room)].decode(errors="ignore")


def answer_prompt(question: str, passages: Sequence[str]) -> str:
    """Return the prompt for a second answer from the passages, or for an answer without passages if there are none."""
    if not passages:
        return f"{_CLOSED}\n\nQuestion: {question}"
    return "\n\n".join([_FROM_PASSAGES, numbered(passages), f"Question: {question}"])


def read_json(text: str, *, asks: bool = True) -> Written | None:
    """Return the content of a reply in JSON, or None if it cannot be read. asks: whether it must have a question.

    The last readable object counts; a code fence, words and other objects around it are ignored. An empty question or
    answer means that the generator declines, and needs no other field. Null counts as empty, a number as text, and
    reasoning other than text is ignored. An object that gives a field twice with different values cannot be read.
    """
    read = (_written(each, asks=asks) for each in _objects(with_latex(text)))
    return next(filter(None, reversed([*read])), None)


def _written(found: Mapping[str, Any], *, asks: bool) -> Written | None:
    question = _text(found.get("question", _ABSENT)) if asks else ""
    answer = _text(found.get("answer", "" if asks and question == "" else _ABSENT))
    evidence = found.get("evidence")
    pieces = [evidence] if isinstance(evidence, str) else [] if evidence is None else evidence
    if question is None or answer is None or not isinstance(pieces, list):
        return None
    quotes = tuple(each for each in pieces if _is_text(each))
    if len(quotes) < len(pieces):
        return None
    reasoning = (_text(found.get("reasoning")) or "")[:MOST_LETTERS]
    return Written(question=question, answer=answer, evidence=quotes, reasoning=reasoning)


_MOST_OBJECTS = 32  # places of a reply where an object may begin


def _objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects in a text; an object inside another one only if the outer one is invalid."""
    decoder, start = json.JSONDecoder(object_pairs_hook=_unambiguous), 0
    for _ in range(_MOST_OBJECTS):
        start = text.find("{", start)
        if start < 0:
            return
        try:
            found, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
        else:
            yield found


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Raises ValueError for a field with two values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found and found[name] != value:
            raise ValueError(name)
        found[name] = value
    return found


# Commands that begin with JSON's escapes \n, \r and \t, and cannot be a word after a line break or a tab.
_COMMAND = re.compile(
    r"n(?:abla|atural|earrow|eq|exists|leq|mid|otin|parallel|subseteq|warrow)"
    r"|r(?:angle|brace|ceil|ef|floor|ho|ight|ightarrow|ightharpoonup|ightleftharpoons|m|oot|vert|Vert)"
    r"|t(?:anh|binom|ext|extbf|extit|extrm|extsf|extstyle|exttt|frac|herefore|heta|ilde|imes|riangle|woheadrightarrow)"
)
# Commands that could be such a word, so that other LaTeX in the reply decides.
_UNCERTAIN = re.compile(r"n(?:e|eg|ewline|i|olimits|onumber|ot|u)|t(?:ag|an|au|iny|o|op)")
_ESCAPE = re.compile(r'(?P<start>(?<!\\)")?\\(?:u[0-9a-fA-F]{4}|(?P<letters>[a-zA-Z]+)|(?P<mark>.))', re.DOTALL)
_LATEX = re.compile(r"\\\\(?!n[A-Z])[a-zA-Z]{2}|\\[bf][a-zA-Z]|\$[^$]{0,200}?\\[^$]{0,200}?\$|\\[ac-eg-mo-qsv-zA-Z(\[]")


def with_latex(text: str) -> str:
    """Escape the backslashes of LaTeX commands in a JSON reply, which the generator has not escaped.

    JSON reads \\frac as a form feed and "rac". No text has a backspace or a form feed before a letter, and an escape
    that JSON does not know is not an escape. A line break, a tab or a carriage return stays, unless the letters after
    the backslash are a command. This is a command that cannot be a word, or any command in a reply with other LaTeX or
    at the start of a text.
    """
    has_latex = _LATEX.search(text) is not None

    def repaired(match: re.Match[str]) -> str:
        letters, mark, whole = match["letters"], match["mark"], match[0]
        if letters is None:
            if mark == "'":
                return whole.replace("\\", "")
            return whole if mark is None or mark in '"\\/' else whole.replace("\\", "\\\\")
        first, at_start = letters[0], match["start"] is not None
        if first in "nrt":
            is_command = bool(_COMMAND.fullmatch(letters)) or (
                bool(_UNCERTAIN.fullmatch(letters)) and (has_latex or at_start)
            )
        else:
            is_command = first not in "bfu" or len(letters) > 1
        return whole.replace("\\", "\\\\") if is_command else whole

    return _ESCAPE.sub(repaired, text) if "\\" in text else text


_ABSENT: Any = object()
_NO_TEXT = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f\\ud800-\\udfff]")


def _text(value: object) -> str | None:
    """Return a value of a reply as text, or None if it is not text."""
    if value is None:
        return ""
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    return str(value).strip() if _is_text(value) else None


def _is_text(value: object) -> TypeGuard[str]:
    # JSON may encode half of a surrogate pair, which no table holds, and control characters, which no text has.
    return isinstance(value, str) and _NO_TEXT.search(value) is None


def questions(
    rows: Sequence[Mapping[str, Any]],
    documents: Callable[[], Iterator[SourceDocument]],
    generating: Generating,
    options: SynthesisConfig,
) -> tuple[pl.DataFrame, list[Reject]]:
    """Return QUESTIONS of the candidates, and the candidates without a reply.

    Args:
        rows: rows of PASSAGES.
        documents: the documents of the shard; read only for kind `self`.
        generating: the generator.
        options: the section `synthesis`.

    Raises:
        UnusableServerError, BudgetError, TransientError: see Asking.
    """
    plain = [row for row in rows if row["kind"] not in {"self", "prolong_summary"}]
    wanted = [*first_calls(generating.settings, plain, {})]
    written: dict[str, Written | None] = generating.read(wanted, read_json, noun="questions")
    found = {row["sample_id"]: dict(row) for row in rows}
    own = [row for row in rows if row["kind"] == "self"]
    if own:
        texts = whole_documents(own, documents)
        for name, (passages, made) in _own_questions(own, texts, generating, options).items():
            written[name] = made
            found[name]["passages"] = passages
    written |= _summaries([row for row in rows if row["kind"] == "prolong_summary"], generating)
    table = _table([_row(found[name], made) for name, made in sorted(written.items())])
    reasons = sorted(
        (name, why) for name, why in generating.unanswered.items() if name in found and name not in written
    )
    return table, [Reject(sample_id=name, reason=reason, refused=True) for name, reason in reasons]


def whole_documents(
    rows: Sequence[Mapping[str, Any]], documents: Callable[[], Iterator[SourceDocument]]
) -> dict[str, str]:
    """Return the texts of the documents that candidates of kind `self` read whole; without such, none is read."""
    wanted = {row["document"] for row in rows if row["kind"] == "self"}
    return {each.name: each.text for each in documents() if each.name in wanted} if wanted else {}


def first_calls(
    settings: GeneratorConfig, rows: Iterable[Mapping[str, Any]], texts: Mapping[str, str]
) -> Iterator[GeneratorCall]:
    """Yield the requests about candidates that depend on no reply.

    Args:
        settings: of the generator.
        rows: rows of PASSAGES.
        texts: by document, from `whole_documents`.
    """
    for row in rows:
        name, kind = row["sample_id"], row["kind"]
        if kind == "self":
            prompt = own_question_prompt(settings, texts[row["document"]])
            yield call(settings, name, prompt, repeat=row["number"], prompt=True)
        elif kind == "prolong_summary":
            for place, text in enumerate(_texts(row)):
                yield call(settings, f"{name}#{place}", f"{_SUMMARISE}\n\n{text}")
        else:
            yield call(settings, name, question_prompt(kind, _texts(row)), json_mode=True)


def later_requests(row: Mapping[str, Any]) -> int:
    """Return the number of requests that follow the first ones about a candidate, if each reply can be read."""
    count, parts = int(row["kind"] == "self"), len(row["passages"])
    while row["kind"] == "prolong_summary" and parts > 1:
        parts = math.ceil(parts / _GROUP)
        count += parts
    return count


def with_unread(table: pl.DataFrame, partly_read: Mapping[str, tuple[int, int]]) -> pl.DataFrame:
    """Return QUESTIONS, with PROMPT_TOKENS and UNREAD if the generator read a prompt only in part."""
    counts = {name: (read, sent - read) for name, (sent, read) in partly_read.items()}
    rows = [(name, *counts[name]) for name in table["sample_id"] if name in counts]
    columns = schema((SAMPLE_ID, PROMPT_TOKENS, UNREAD))
    found = pl.DataFrame(rows, schema=columns, orient="row")
    return table.join(found, on="sample_id", how="left", maintain_order="left") if rows else table


def _texts(row: Mapping[str, Any]) -> list[str]:
    return [passage["text"] for passage in row["passages"]]


def _row(row: Mapping[str, Any], made: Written | None) -> dict[str, Any]:
    if made is None:
        return {**row, "question": "", "answer": "", "evidence": [], "reasoning": "", "fault": UNREADABLE}
    if max(map(len, (made.question, made.answer, *made.evidence))) > MOST_LETTERS:
        return {**row, "question": "", "answer": "", "evidence": [], "reasoning": "", "fault": TOO_LONG}
    fault = "" if made.question and made.answer else DECLINED
    texts = {name: getattr(made, name) for name in ("question", "answer", "reasoning")}
    return {**row, **texts, "evidence": [*made.evidence], "fault": fault}


def _table(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return QUESTIONS by candidate; the first of equal questions about a document is kept."""
    seen: set[tuple[str, bytes]] = set()
    marked = []
    for row in sorted(rows, key=lambda each: each["sample_id"]):
        key = (row["document"], normalised(row["question"]))
        # Summaries have only a few wordings of their request, so equal requests are no duplicates.
        repeated = not row["fault"] and key in seen and row["kind"] != "prolong_summary"
        marked.append({**row, "fault": DUPLICATE} if repeated else row)
        if not row["fault"]:
            seen.add(key)
    return pl.DataFrame(marked, schema=schema(QUESTIONS), orient="row")


def _own_questions(
    rows: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str],
    generating: Generating,
    options: SynthesisConfig,
) -> dict[str, tuple[list[dict[str, Any]], Written | None]]:
    """Return passages and questions with answers of the candidates of kind `self`; all questions are asked first."""
    settings, asked = generating.settings, [*first_calls(generating.settings, rows, texts)]
    lines = {name: _first_line(text) for name, text in generating.texts(asked).items()}
    own = {name: line if _is_text(line) else "" for name, line in lines.items()}
    document = {row["sample_id"]: row["document"] for row in rows}
    answering = [
        call(settings, name, own_answer_prompt(settings, texts[document[name]], question), json_mode=True)
        for name, question in own.items()
        if 0 < len(question) <= MOST_LETTERS
    ]
    answers = generating.read(answering, partial(read_json, asks=False), noun="answers")
    found: dict[str, tuple[list[dict[str, Any]], Written | None]] = {}
    for name, question in own.items():
        if not question or len(question) > MOST_LETTERS:
            found[name] = ([], Written(question=question, answer="", evidence=(), reasoning=""))
        elif name in answers:
            made: Written | None = answers[name]
            made = None if made is None else replace(made, question=question)
            passages, evidence = _holding(texts[document[name]], made.evidence if made else (), options.passage_words)
            found[name] = (passages, made and replace(made, evidence=evidence))
    return found


def _holding(text: str, evidence: Sequence[str], size: int) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the passages that contain the evidence, and the evidence of each passage.

    Evidence that is in no passage gets a passage without text, so that the check of the evidence refuses it.
    """
    passages = split_passages(text, size)
    held: dict[int, tuple[TextPassage, str]] = {}
    for place, quote in enumerate(evidence):
        known = next((each for each in passages if is_quoted(quote, each.text)), None)
        key, passage = (-1 - place, TextPassage(start=0, end=0, text="")) if known is None else (known.start, known)
        held.setdefault(key, (passage, quote))
    found = [held[key] for key in sorted(held)]
    return [{"start": one.start, "end": one.end, "text": one.text} for one, _ in found], tuple(q for _, q in found)


def is_quoted(quote: str, passage: str) -> bool:
    """Return whether a passage contains a text word for word, in whole words.

    Case and white space do not count. Ideographs are written without blanks, so a word may start at each of them.
    """
    short, whole = (normalised(each).decode(errors="replace") for each in (quote, passage))
    starts, ends = (_LETTER if re.match(_LETTER, letter) else "(?!)" for letter in (short[:1], short[-1:]))
    return short in whole and bool(re.search(rf"(?<!{starts}){re.escape(short)}(?!{ends})", whole))


def _summary(text: str) -> str | None:
    # Only a text that the requests for the next level can contain.
    return text.strip() if 0 < len(text.strip()) <= MOST_LETTERS and _is_text(text) else None


def _first_line(text: str) -> str:
    return next((line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()), "")


def _summaries(rows: Sequence[Mapping[str, Any]], generating: Generating) -> dict[str, Written]:
    """Return recursive summaries (Wu et al. 2021): of each chunk, then of groups of summaries, until one is left."""
    settings = generating.settings
    level = {row["sample_id"]: _texts(row) for row in rows}
    first = True
    while any(first or len(parts) > 1 for parts in level.values()):
        groups = {
            name: parts if first else ["\n\n".join(parts[at : at + _GROUP]) for at in range(0, len(parts), _GROUP)]
            for name, parts in level.items()
            if first or len(parts) > 1
        }
        joins = [
            call(settings, f"{name}#{place}", f"{_JOIN}\n\n{text}")
            for name, texts in groups.items()
            for place, text in enumerate(texts)
        ]
        wanted = [*first_calls(settings, rows, {})] if first else joins
        made = generating.read(wanted, _summary, noun="summaries")
        for name, texts in groups.items():
            level[name] = [made.get(f"{name}#{place}") or "" for place in range(len(texts))]
            if not all(level[name]):
                why = (generating.unanswered.pop(f"{name}#{place}", "") for place in range(len(texts)))
                generating.unanswered[name] = next(filter(None, why), "a summary is empty, too long or no text")
                level[name] = []
        level = {name: parts for name, parts in level.items() if parts}
        first = False
    order = {name: int(name[:8], 16) % len(_SUMMARY_REQUESTS) for name in level}
    return {
        name: Written(question=_SUMMARY_REQUESTS[order[name]], answer=parts[0], evidence=(), reasoning="")
        for name, parts in level.items()
    }
