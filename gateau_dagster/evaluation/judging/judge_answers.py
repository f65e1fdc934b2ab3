"""Puts a model's answers before a judge: several at a time, every reply kept before it counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import TransientError, redacted
from gateau_dagster.evaluation.judging.cost import Account, cost_sentence
from gateau_dagster.evaluation.judging.replies import Replies, Usage
from gateau_dagster.evaluation.judging.request import Asked, Judge, JudgeRefusedError, Reply, UnansweredError
from gateau_dagster.evaluation.questions import Question
from gateau_dagster.evaluation.scored import Judging
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.stamp import fingerprint

Texts = Mapping[str, Mapping[int, str]]
"""Answers by question and turn."""

_MEANS = {"base_url", "key", "timeout", "max_retries", "token_limit"}
_FEWEST_FAILURES = 8
"""Requests in a row that no server which works leaves without a reply."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A judgment that is to be made of the answer to a turn of a question; `part` is what rejects call the turn."""

    question_id: str
    turn: int
    asked: Asked
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """`table`: tables.JUDGMENTS. `rejected`: questions of which a judgment got no reply. `new`: what was paid for."""

    table: pl.DataFrame
    rejected: Sequence[Reject]
    new: Usage

    @property
    def unanswered(self) -> list[str]:
        """The questions that another server, or more patience, may have judged; see `means`."""
        return [each.sample_id for each in self.rejected]


def means(settings: JudgeConfig | None) -> str:
    """Digest of what decides whether a request gets a reply, and is no part of the judgment; see Node."""
    return "" if settings is None else fingerprint(settings.model_dump(include=_MEANS))


def wanted_judgments(
    questions: Sequence[Question], given: Texts, judging: Judging, options: Any, settings: JudgeConfig
) -> list[Wanted]:
    """The judgments of one model's answers, in order of the questions. One that lacks an answer to a turn has none."""
    found = []
    for question in questions:
        texts = given.get(question.question_id, {})
        if all(turn in texts for turn in range(len(question.turns))):
            found += _of_question(question, [texts[turn] for turn in sorted(texts)], judging, options, settings)
    return found


def _of_question(
    question: Question, texts: Sequence[str], judging: Judging, options: Any, settings: JudgeConfig
) -> Iterator[Wanted]:
    for request in judging.requests(question, texts, options):
        for repeat in range(settings.repeats):
            asked = Asked(
                judge=settings.model,
                messages=request.messages,
                max_tokens=request.max_tokens,
                temperature=request.temperature,
                repeat=repeat,
            )
            yield Wanted(question_id=request.question_id, turn=request.turn, asked=asked)


def answers_by_question(answers: pl.DataFrame) -> dict[str, dict[int, str]]:
    """The texts of tables.ANSWERS by question and turn."""
    found: dict[str, dict[int, str]] = {}
    for question, turn, answer in answers.select("question_id", "turn", "answer").iter_rows():
        found.setdefault(question, {})[turn] = answer
    return found


def longest_answers(questions: Sequence[Question]) -> dict[str, dict[int, str]]:
    """Stand-ins by question and turn, as long as answers may become: a common word is a token."""
    return {
        each.question_id: dict.fromkeys(range(len(each.turns)), " the" * each.generation.max_new_tokens)
        for each in questions
    }


def judge_answers(
    wanted: Sequence[Wanted],
    judging: Judging,
    judge: Judge,
    replies: Replies,
    settings: JudgeConfig,
    progress: Progress = silent,
) -> Judged:
    """Every judgment, from the kept replies or from the judge.

    The first request that is new is sent alone: what would fail for all of them fails once.

    Raises:
        JudgeRefusedError: the judge answers none of them.
        BudgetError: the budget is used up; what was answered is kept.
        TransientError: the judge seems to be down.
    """
    work = _Work(judging, judge, replies, settings)
    rows: list[Mapping[str, Any]] = []
    rejected: dict[str, list[str]] = {}
    last = None
    kept = sum(each.asked in replies for each in wanted)
    progress(0, len(wanted), "judgments", f"{kept:,} known before; the first new one is asked alone")
    for done, (each, made) in enumerate(work.results(wanted), start=1):
        if isinstance(made, UnansweredError):
            rejected.setdefault(each.question_id, []).append(f"{each.part or f'turn {each.turn}'}: {made}")
            last = made
        else:
            rows.append(made)
        progress(done, len(wanted), "judgments", f"{cost_sentence(settings, work.account.new)} so far")
    # A judge that has replied before and refuses these for good works: it is they that it cannot take.
    if last is not None and not rows and (last.passing or not replies.spent.requests):
        raise work.down(last)
    table = pl.DataFrame(rows, schema=tables.schema(tables.JUDGMENTS), orient="row")
    return Judged(
        table=table.sort("question_id", "turn", "repeat"),
        rejected=[Reject(sample_id=name, reason="; ".join(reasons)) for name, reasons in sorted(rejected.items())],
        new=work.account.new,
    )


@dataclass
class _Work:
    """Judgments under way, in several threads."""

    judging: Judging
    judge: Judge
    replies: Replies
    settings: JudgeConfig
    account: Account = field(init=False)
    _failed: int = 0
    _ended: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asking: dict[str, threading.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.account = Account(self.settings, self.replies.spent)

    def results(self, wanted: Sequence[Wanted]) -> Iterator[tuple[Wanted, Mapping[str, Any] | UnansweredError]]:
        """Each judgment as it is made: its row, or why there is none."""
        first = next((each for each in wanted if each.asked not in self.replies), None)
        if first is not None:
            yield first, self._judgment(first)
        pool = ThreadPoolExecutor(self.settings.concurrent, thread_name_prefix="judge")
        try:
            futures = {pool.submit(self._judgment, each): each for each in wanted if each is not first}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _judgment(self, wanted: Wanted) -> Mapping[str, Any] | UnansweredError:
        """What becomes of one; nothing any more once another one has ended the work."""
        if self._ended is not None:
            raise self._ended
        try:
            return self._row(wanted)
        except BaseException as error:  # whatever it is: those that wait would still be paid for
            self._ended = error
            raise

    def _row(self, wanted: Wanted) -> Mapping[str, Any] | UnansweredError:
        """A row of tables.JUDGMENTS, or why there is no reply. An unreadable reply is asked for again, then kept."""
        total, score, reply = Usage(), None, None
        for attempt in range(self.judging.again + 1):
            try:
                reply = self._reply(replace(wanted.asked, attempt=attempt))
            except UnansweredError as error:
                if reply is None:
                    return error
                break
            total += Usage.of(reply)
            score = self.judging.parse(reply.text)
            if score is not None:
                break
        assert reply is not None, "there is a first attempt"
        return {
            "question_id": wanted.question_id,
            "turn": wanted.turn,
            "repeat": wanted.asked.repeat,
            "digest": wanted.asked.digest,
            "score": score,
            "prompt": json.dumps([dict(each) for each in wanted.asked.messages], ensure_ascii=False),
            "reply": reply.text,
            "requests": total.requests,
            "prompt_tokens": total.prompt_tokens,
            "reply_tokens": total.reply_tokens,
            "seconds": reply.seconds,
        }

    def _reply(self, asked: Asked) -> Reply:
        """Of equal requests that are wanted at once, one is sent; the others wait for what is kept of it."""
        with self._lock:
            alone = self._asking.setdefault(asked.digest, threading.Lock())
        with alone:
            reply = self.replies.find(asked)
            return self._paid_reply(asked) if reply is None else reply

    def _paid_reply(self, asked: Asked) -> Reply:
        self.account.open_request()
        usage = Usage()
        try:
            reply = self.judge(asked)
            reply = replace(reply, text=redacted(reply.text))
            usage = Usage.of(reply)
        except UnansweredError as error:
            self._count_failure(error)
            raise
        finally:
            self.account.close_request(usage)
        self.replies.keep(asked, reply)
        with self._lock:
            self._failed = 0
        return reply

    def _count_failure(self, error: UnansweredError) -> None:
        """Raises where so many in a row have failed that others would only cost time."""
        with self._lock:
            self._failed += 1
            failed = self._failed
        if failed >= max(_FEWEST_FAILURES, 2 * self.settings.concurrent):
            raise self.down(error) from None

    def down(self, last: UnansweredError) -> JudgeRefusedError | TransientError:
        """What to say of a judge that answers nothing."""
        kind = TransientError if last.passing else JudgeRefusedError
        return kind(
            f"evaluation.judge: {self.settings.base_url} leaves every request without a usable reply, the last one for "
            f"this reason: {last}. See to it and run again; what was answered is kept."
        )
