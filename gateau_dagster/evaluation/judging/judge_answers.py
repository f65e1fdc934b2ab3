"""Send a model's answers to a judge, several at a time; every reply is stored before it is used."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from gateau_dagster import tables
from gateau_dagster.config.judge import JudgeConfig
from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import redacted
from gateau_dagster.evaluation.benchmark import Question
from gateau_dagster.evaluation.judged import RatedBenchmark
from gateau_dagster.evaluation.judging.cost import Account, cost_sentence
from gateau_dagster.evaluation.judging.replies import Judge, JudgeCall, Replies, Reply, Usage
from gateau_dagster.evaluation.server_client import Patience, UnansweredError, cut
from gateau_dagster.progress import Progress, silent
from gateau_dagster.storage.stamp import fingerprint

Texts = Mapping[str, Mapping[int, str]]
"""Answers by question and turn."""

PLACE = "evaluation.judge"
_SECONDS_BETWEEN_NOTES = 1.0


@dataclass(frozen=True, kw_only=True)
class JudgmentRequest:
    """A requested judgment of the answer to a turn of a question; `part` is the name of the turn in rejects."""

    question_id: str
    turn: int
    asked: JudgeCall
    part: str = ""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Judgments and rejects.

    `table`: tables.JUDGMENTS. `rejected`: questions with a judgment that got no reply. `new`: what was paid for.
    """

    table: pl.DataFrame
    rejected: Sequence[Reject]
    new: Usage

    @property
    def unanswered(self) -> list[str]:
        """Return the questions that another server, or more patience, might judge; `means` is the digest of these
        settings.
        """
        return [each.sample_id for each in self.rejected]


def means(settings: JudgeConfig | None) -> str:
    """Return a digest of what decides whether a request gets a reply, but not what the judgment is; Asset.means holds
    it.
    """
    if settings is None:
        return ""
    given = settings.model_dump(include={"base_url", "key", "timeout"})
    # The keys keep their first names, so that digests of earlier versions stay valid.
    return fingerprint({**given, "max_retries": settings.retries, "token_limit": settings.token_limit})


def wanted_judgments(
    questions: Sequence[Question], given: Texts, benchmark: RatedBenchmark, settings: JudgeConfig
) -> list[JudgmentRequest]:
    """Return the judgments of one model's answers, by question; a question without an answer to every turn has none."""
    found = []
    for question in questions:
        texts = given.get(question.question_id, {})
        if all(turn in texts for turn in range(len(question.turns))):
            found += (
                JudgmentRequest(
                    question_id=each.question_id, turn=each.turn, asked=JudgeCall.of(settings, each, repeat)
                )
                for each in benchmark.requests(question, [texts[turn] for turn in sorted(texts)])
                for repeat in range(settings.repeats)
            )
    return found


def answers_by_question(answers: pl.DataFrame) -> dict[str, dict[int, str]]:
    """Return the texts of tables.ANSWERS by question and turn."""
    found: dict[str, dict[int, str]] = {}
    for question, turn, answer in answers.select("question_id", "turn", "answer").iter_rows():
        found.setdefault(question, {})[turn] = answer
    return found


def longest_answers(questions: Sequence[Question]) -> dict[str, dict[int, str]]:
    """Return placeholder answers of the greatest length by question and turn; a common word is one token."""
    return {
        each.question_id: dict.fromkeys(range(len(each.turns)), " the" * each.generation.max_new_tokens)
        for each in questions
    }


def judge_answers(
    wanted: Sequence[JudgmentRequest],
    parse: Callable[[str], float | None],
    judge: Judge,
    replies: Replies,
    settings: JudgeConfig,
    progress: Progress = silent,
    *,
    again: int = 0,
) -> Judged:
    """Return every judgment, from the stored replies or from the judge.

    parse: returns the score in a reply; None where it is unreadable. again: further requests after such a reply.

    The first new request is sent alone, so that a common fault fails once. A judgment without a reply is tried once
    more, after all others, if another try may help.

    Raises:
        UnusableServerError: the judge answers none of them.
        BudgetError: the budget is used up; replies that arrived are stored.
        TransientError: the judge seems to be down.
    """
    work = _JudgingWork(parse, again, judge, replies, settings)
    rows: list[Mapping[str, Any]] = []
    rejected: dict[str, list[str]] = {}
    kept = sum(each.asked in replies for each in wanted)
    progress(0, len(wanted), "judgments", f"{kept:,} known before; the first new one is asked alone")
    done = 0
    for result in work.results(wanted):
        if result is not None:
            each, made = result
            done += 1
            if isinstance(made, UnansweredError):
                rejected.setdefault(each.question_id, []).append(f"{each.part or f'turn {each.turn}'}: {made}")
            else:
                rows.append(made)
        spent = f"{cost_sentence(settings, work.account.new)} so far"
        progress(done, len(wanted), "judgments", ", ".join(filter(None, [spent, judge.under_way()])))
    if not rows:
        work.patience.check()
    table = pl.DataFrame(rows, schema=tables.schema(tables.JUDGMENTS), orient="row")
    return Judged(
        table=table.sort("question_id", "turn", "repeat"),
        rejected=[Reject(sample_id=name, reason="; ".join(reasons)) for name, reasons in sorted(rejected.items())],
        new=work.account.new,
    )


_Made = Mapping[str, Any] | UnansweredError


@dataclass
class _JudgingWork:
    """Makes judgments in several threads."""

    parse: Callable[[str], float | None]
    again: int
    judge: Judge
    replies: Replies
    settings: JudgeConfig
    account: Account = field(init=False)
    patience: Patience = field(init=False)
    _ended: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asking: dict[str, threading.Lock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spent = self.replies.spent
        self.account = Account(self.settings, spent)
        # A judge that has replied before works; if it refuses requests for good, the requests are at fault.
        self.patience = Patience(PLACE, self.settings.base_url, self.settings, works=bool(spent.requests))

    def results(self, wanted: Sequence[JudgmentRequest]) -> Iterator[tuple[JudgmentRequest, _Made] | None]:
        """Yield each judgment with its row or error as it is made; None about every second while nothing arrives."""
        first = next((each for each in wanted if each.asked not in self.replies), None)
        later: list[JudgmentRequest] = []
        pool = ThreadPoolExecutor(self.settings.concurrency, thread_name_prefix="judge")
        try:
            for part in ([] if first is None else [first], [each for each in wanted if each is not first], later):
                futures = {pool.submit(self._judgment, each): each for each in part}
                for future in _as_completed(futures):
                    if future is None:
                        yield None
                        continue
                    each, made = futures[future], future.result()
                    if part is not later and isinstance(made, UnansweredError) and made.is_worth_another_try:
                        later.append(each)
                    else:
                        yield each, made
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _judgment(self, wanted: JudgmentRequest) -> _Made:
        """Return the row or error of one judgment. Raises once another judgment has ended the work."""
        if self._ended is not None:
            raise self._ended
        try:
            return self._row(wanted)
        except BaseException as error:  # any error: the waiting requests would still be paid for
            self._ended = error
            raise

    def _row(self, wanted: JudgmentRequest) -> _Made:
        """Return a row of tables.JUDGMENTS, or why there is no reply; ask again after an unreadable reply."""
        total, score, reply = Usage(), None, None
        for attempt in range(self.again + 1):
            try:
                reply = self._reply(replace(wanted.asked, attempt=attempt))
            except UnansweredError as error:
                if reply is None:
                    return error
                break
            total += Usage.of(reply)
            score = self.parse(reply.text)
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

    def _reply(self, asked: JudgeCall) -> Reply:
        """Return the reply. Of concurrent equal requests one is sent; the others wait for its stored reply.

        An unusable reply is paid for, so it is stored, too, under the settings that produced it.
        """
        with self._lock:
            alone = self._asking.setdefault(asked.digest, threading.Lock())
        with alone:
            reply = self.replies.find(asked)
            if reply is None or not reply.is_usable:
                reply = self.replies.find(asked, means(self.settings)) or self._paid_reply(asked)
        if not reply.is_usable:
            raise _unusable(reply)
        return reply

    def _paid_reply(self, asked: JudgeCall) -> Reply:
        self.account.open_request()
        usage = Usage()
        try:
            reply = self.judge(asked)
            reply = replace(reply, text=redacted(reply.text))
            usage = Usage.of(reply)
        except UnansweredError as error:
            self.patience.failed(error)
            raise
        finally:
            self.account.close_request(usage)
        self.replies.keep(asked, reply, "" if reply.is_usable else means(self.settings))
        if reply.is_usable:
            self.patience.answered()
        else:
            self.patience.failed(_unusable(reply))
        return reply


def _unusable(reply: Reply) -> UnansweredError:
    """Return why a reply is unusable."""
    if reply.finish_reason == "length":
        return cut(PLACE, reply.reply_tokens)
    return UnansweredError(f"the reply is empty (finish_reason {reply.finish_reason})", passing=False)


def _as_completed(futures: Collection[Future[_Made]]) -> Iterator[Future[_Made] | None]:
    """Yield the futures as they end, and None every second in which none does."""
    waiting = {*futures}
    while waiting:
        ended, waiting = wait(waiting, timeout=_SECONDS_BETWEEN_NOTES, return_when=FIRST_COMPLETED)
        yield from ended or [None]
