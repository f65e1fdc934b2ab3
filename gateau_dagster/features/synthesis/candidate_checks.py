"""Check that a synthetic sample needs its context: figures of theta_B, and the first check that refuses a sample.

All figures of theta_B are gains: differences of the probabilities of the answer's tokens in two contexts, averaged over
the tokens that gain most. Formulaic tokens, which are likely in any context, do not dilute a gain.
"""

# Why these checks: a generator easily writes questions that a part of the context answers, or that need no context.
# Such samples teach a model nothing about long contexts. So most checks take something away from the context, and look
# whether the answer suffers.
#
# Why in this order: the cheapest first, and none after the one that refuses. `verbatim` reads texts only. Those by
# theta_B follow, with the whole contexts at the end. Requests to a server come last, because they cost money. The
# price: a looser threshold later needs work on candidates that were refused early.
#
# Figures are kept with a digest of their inputs, not with the verdict. So a stricter threshold needs no model and no
# request.

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from gateau_dagster.config import ScoringConfig
from gateau_dagster.data.near_duplicates import normalised
from gateau_dagster.data.sample import Reject, Sample, text_digest
from gateau_dagster.errors import MASK, gateau_command
from gateau_dagster.features.evaluation.benchmark import JudgeRequest
from gateau_dagster.features.evaluation.judging.asking import Asking
from gateau_dagster.features.evaluation.judging.replies import Judge, Replies, ServerCall
from gateau_dagster.features.evaluation.server_client import UnansweredError
from gateau_dagster.features.evaluation.servers import JudgeConfig
from gateau_dagster.features.synthesis.config import GeneratorConfig, SynthesisChecksConfig
from gateau_dagster.features.synthesis.contexts import BETWEEN
from gateau_dagster.features.synthesis.questions import (
    DECLINED,
    DUPLICATE,
    IDEOGRAPHS,
    MOST_LETTERS,
    TOO_LONG,
    UNREADABLE,
    Generating,
    GeneratorCall,
    answer_prompt,
    call,
    is_quoted,
)
from gateau_dagster.readable import plural
from gateau_dagster.scoring.segments import TOP_SHARE, counted_tokens
from gateau_dagster.tables import RAW_LONG_SFT, REJECTED, SAMPLE_ID, Column, schema

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from gateau_dagster.models.loaded import LoadedModel

# Raise it when the same texts give other figures.
CHECKS_CODE_VERSION = "2"
Probabilities = npt.NDArray[np.float32]
"""The probability of each token of an answer, [|y|]."""
VERBATIM, CLOSED_BOOK, NEAR_ONLY, NEEDED, ROBUST = "verbatim", "closed_book", "near_only", "needed", "robust"
ASKED, AGREEMENT = "ask_without_context", "agreement"
CHECKS = (VERBATIM, CLOSED_BOOK, NEAR_ONLY, NEEDED, ROBUST, ASKED, AGREEMENT)
"""The checks in their order, the cheapest first."""
UNSCORABLE, NO_REPLY = "unscorable", "no reply"
# The meaning of each reason, and a fix.
_CURES = {
    UNREADABLE: "no reply is the JSON that was asked for; use another generator.model",
    DECLINED: "the generator finds no question in the passages; raise passage_words, or use another generator.model",
    TOO_LONG: f"question, answer or evidence has more than {MOST_LETTERS:,} characters; use another generator.model",
    DUPLICATE: "the question was asked before about the same document; add documents, or lower count",
    VERBATIM: "the evidence is not in the passages word for word, or the question holds the answer; use another "
    "generator.model",
    CLOSED_BOOK: "theta_B knows the answer without the passages; use documents that it does not know, or lower "
    "checks.closed_book",
    NEAR_ONLY: "the end of the context is enough; raise lengths, or lower checks.near_only",
    NEEDED: "one of the passages is not needed; use another generator.model, or lower checks.needed",
    ROBUST: "theta_B loses the answer in the whole context; lower lengths, or raise checks.robust",
    ASKED: "the generator knows the answer without the passages; use documents that it does not know",
    AGREEMENT: "a second answer differs; use another generator.model, or set checks.agreement: judge",
    UNSCORABLE: "theta_B cannot read the sample; raise scoring.max_length",
}
# The repeats of a question to the generator, by check.
_REPEATS = {ASKED: (2, 3), AGREEMENT: (1,)}
_GAINS = pl.List(pl.Float64())
_PROBABILITIES = pl.List(pl.Float32())


def _figure(name: str, description: str, dtype: pl.DataType | None = None) -> Column:
    return Column(
        name=name, dtype=dtype or pl.Float64(), description=f"{description}; null if not computed.", nullable=True
    )


CHECKED = (
    SAMPLE_ID,
    Column(name="kind", dtype=pl.String(), description="Kind of the question."),
    Column(name="length", dtype=pl.Int32(), description="Greatest length of the context, in tokens."),
    Column(name="accepted", dtype=pl.Boolean(), description="Whether no check refuses the sample."),
    Column(
        name="reason", dtype=pl.String(), description="What refuses it: a check, or a fault of the question; or empty."
    ),
    Column(name="detail", dtype=pl.String(), description="More about the reason, or empty."),
    _figure(VERBATIM, "1 if the passages hold the evidence and the question does not hold the answer, else 0"),
    _figure(CLOSED_BOOK, "Gain of the passages over the question without context"),
    _figure(NEAR_ONLY, "Gain of the passages over the end of the context"),
    _figure(NEEDED, "Least gain of all passages over all but one"),
    _figure("passage_gains", "That gain for each passage", _GAINS),
    _figure(ROBUST, "Gain of the passages over the whole context: what the answer loses in it"),
    _figure(ASKED, "0 if the generator answers without the passages, else 1"),
    _figure(AGREEMENT, "1 if a second answer from the passages agrees, else 0"),
    _figure("probability", "Probability of each token of the answer given the passages, by theta_B", _PROBABILITIES),
    Column(
        name="figures",
        dtype=pl.String(),
        description="Digests of what the figures were computed from: those of the passages, near_only, robust, "
        "ask_without_context, agreement.",
    ),
)
# The figures by what they are computed from, in the order of their digests.
_FIGURES_OF = {
    "passages": (CLOSED_BOOK, NEEDED, "passage_gains", "probability"),
    NEAR_ONLY: (NEAR_ONLY,),
    ROBUST: (ROBUST,),
    ASKED: (ASKED,),
    AGREEMENT: (AGREEMENT,),
}
_KEPT = tuple(name for names in _FIGURES_OF.values() for name in names)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A question with its answer, and the context in which theta_B reads both."""

    context: str
    question: str
    answer: str


def answer_probabilities(
    loaded: LoadedModel, given: Iterable[Given], scoring: ScoringConfig, *, max_length: int
) -> Iterator[Probabilities | Reject]:
    """Yield p(y_t | context, question, y_<t) of each token of each answer, in order, by the scoring prompt.

    An empty context is the closed book. A reject gives the reason why an answer has no probabilities.
    """
    from gateau_dagster.models.loaded import Meter
    from gateau_dagster.scoring.scorer import Request, score_samples

    samples = (
        Sample(sample_id="", source="", context=each.context, instruction=each.question, response=each.answer)
        for each in given
    )
    requests = (Request(sample=sample, perplexity=True, cam=False) for sample in samples)
    for outcome in score_samples(loaded, requests, max_length=max_length, scoring=scoring, meter=Meter()):
        row = outcome.perplexity
        assert row is not None, "it was asked for"
        yield row if isinstance(row, Reject) else np.asarray(row.token_probability, dtype=np.float32)


def gain(more: Probabilities, less: Probabilities) -> float:
    """Return the gain in probability of an answer in one context over another, from 0 to 1.

    It is the mean of the largest differences of the probabilities of its tokens [|y|]; negative ones count as 0. As in
    the far-segment gain, a tenth of the tokens counts, and at least two.
    """
    assert more.shape == less.shape and more.size, (more.shape, less.shape)
    # Not the mean over all tokens. Most tokens of an answer are likely in any context, and would dilute the gain of the
    # others.
    count = int(counted_tokens(np.array([more.size]), top=TOP_SHARE)[0])
    largest = np.sort(more.astype(np.float64) - less)[::-1][:count]
    return float(np.clip(largest, 0.0, None).mean())


def without_each(passages: Sequence[str]) -> list[str]:
    """Return all passages as one text, followed by one text per passage without that passage, in order."""
    others = ([*passages[:place], *passages[place + 1 :]] for place in range(len(passages)))
    return [BETWEEN.join(passages), *(BETWEEN.join(each) for each in others)]


def verbatim_fault(passages: Sequence[str], question: str, answer: str, evidence: Sequence[str]) -> str:
    """Return the reason why the evidence or the answer cannot be right; an empty text if there is none.

    Each passage must contain its evidence word for word, and the question must not contain the answer. Case and white
    space do not count. Evidence needs a word of three letters or two ideographs; an answer needs a word. A reply with a
    masked secret cannot be right.
    """
    if any(MASK in text and not any(MASK in each for each in passages) for text in (question, answer, *evidence)):
        return f"the reply held a secret of this machine's environment, which is masked as {MASK}"
    if not passages or len(evidence) != len(passages) or not all(each.strip() for each in evidence):
        return f"{sum(bool(each.strip()) for each in evidence)} pieces of evidence for {len(passages)} passages"
    for number, (quote, passage) in enumerate(zip(evidence, passages, strict=True), start=1):
        if not is_quoted(quote, passage):
            return f"the evidence of passage {number} is not in it"
        if not _EVIDENCE.search(normalised(quote).decode(errors="replace")):
            return f"the evidence of passage {number} is too short to tell anything"
    if not _words(answer):
        return "the answer has no word"
    return "the question holds the answer" if _holds(question, answer) else ""


# A hyphen and an apostrophe end a word here: "Ann" is in "Ann's". "3.5" is one word.
_PIECE = re.compile(rf"[{IDEOGRAPHS}]|[^\W_{IDEOGRAPHS}]+(?:[.,]\d[^\W_{IDEOGRAPHS}]*)*")
_EVIDENCE = re.compile(rf"[{IDEOGRAPHS}]{{2}}|[^\W_{IDEOGRAPHS}]{{3}}")


def _holds(question: str, answer: str) -> bool:
    """Return whether the question contains the words of the answer in sequence.

    Each ideograph is a word. A single ideograph as the answer must be a separate word: it is a part of many words.
    """
    both = (_PIECE.findall(normalised(each).decode(errors="replace")) for each in (question, answer))
    asked, said = both
    if len(said) == 1 and re.match(rf"[{IDEOGRAPHS}]", said[0]):
        return said[0] in _words(question).split()
    return f" {' '.join(said)} " in f" {' '.join(asked)} "


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+(?:[-'.,]\w+)*", normalised(text).decode("utf-8", errors="replace")))


def agrees(answer: str, other: str) -> bool:
    """Return whether two answers have the same words; case, punctuation and articles do not count."""
    one, two = ([word for word in _words(each).split() if word not in {"a", "an", "the"}] for each in (answer, other))
    return bool(one) and one == two


def refusing_check(figures: Mapping[str, float | None], checks: SynthesisChecksConfig) -> str:
    """Return the first check that refuses a sample with these figures; an empty text if none does.

    `verbatim`, `ask_without_context` and `agreement` are 1 or 0. `robust` is the gain of the passages over the whole
    context; the others are gains with a lower bound. A figure of None is not computed yet and refuses nothing.
    """
    least = {VERBATIM: 1.0, CLOSED_BOOK: checks.closed_book, NEAR_ONLY: checks.near_only, NEEDED: checks.needed}
    least |= {
        ASKED: 1.0 if checks.ask_without_context else None,
        AGREEMENT: None if checks.agreement is None else 1.0,
    }
    for name in CHECKS:
        figure = figures.get(name)
        if figure is None:
            continue
        if name == ROBUST:
            if checks.robust is not None and figure > checks.robust:
                return name
        elif (bound := least[name]) is not None and figure < bound:
            return name
    return ""


def figure_sentence(reason: str, figure: float | None, checks: SynthesisChecksConfig) -> str:
    """Return the figure and the threshold with which a check refused a candidate; empty for a reason without them."""
    if figure is None or reason not in {CLOSED_BOOK, NEAR_ONLY, NEEDED, ROBUST}:
        return ""
    side = "at most" if reason == ROBUST else "at least"
    return f"{figure:.3f}, and checks.{reason} asks for {side} {getattr(checks, reason):g}"


@dataclass(frozen=True, kw_only=True)
class FigureDigests:
    """The digests of everything besides the texts that determines the figures.

    model: theta_B, with its settings. near: the length of the end that counts as near. answers: the generator.
    comparison: the way in which a second answer is compared.
    """

    model: str = ""
    near: str = ""
    answers: str = ""
    comparison: str = ""


class RowSaver(Protocol):
    """Keeps rows of CHECKED of an unfinished table, so that a killed run can be resumed."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, which is written together with others."""
        ...

    def save(self) -> None:
        """Write the rows that are not written yet."""
        ...


Score = Callable[[Sequence[Given]], Iterator[Probabilities | Reject]]
"""Returns the probabilities of answers in order; see `answer_probabilities`."""
Same = Callable[[Mapping[str, tuple[str, str, str]]], Mapping[str, bool]]
"""Returns whether two answers agree, by candidate, from its question and the two answers."""


@dataclass(kw_only=True)
class Checking:
    """Runs the checks; `checks` is None if nothing is checked.

    score: runs theta_B. near_end: returns the end of a context that counts as near. generating: the generator.
    same: compares answers; `agrees` by default. scorer: the digests of the models and settings behind the figures.
    unanswered: candidates without a reply to a check, with the reason.
    """

    checks: SynthesisChecksConfig | None
    score: Score
    near_end: Callable[[str], str]
    generating: Generating
    same: Same | None = None
    scorer: FigureDigests = field(default_factory=FigureDigests)
    unanswered: dict[str, str] = field(default_factory=dict)

    def table(
        self,
        questions: pl.DataFrame,
        contexts: pl.DataFrame,
        before: pl.DataFrame | None = None,
        saver: RowSaver | None = None,
    ) -> pl.DataFrame:
        """Return CHECKED of the candidates. Figures in `before`, of the same texts and scorer, are reused.

        The checks after the one that refuses a candidate compute no figures for it. `saver` receives the rows with
        figures of theta_B as they are computed, and at the end the rows of the unanswered candidates.
        """
        rows = candidate_rows(questions, contexts, self.scorer, before)
        if self.checks is not None:
            for name in CHECKS:
                alive = [row for row in rows if row["sample_id"] not in self.unanswered]
                self._compute(name, [row for row in alive if needs(row, name, self.checks)], saver)
        if saver is not None:
            for row in rows:
                if row["sample_id"] in self.unanswered:
                    saver.add(self._checked(row))
            saver.save()
        found = [self._checked(row) for row in rows if row["sample_id"] not in self.unanswered]
        return pl.DataFrame(found, schema=schema(CHECKED), orient="row")

    def rejected(self) -> pl.DataFrame:
        """Return the candidates without a reply to a check, with the reasons (tables.REJECTED)."""
        return pl.DataFrame(sorted(self.unanswered.items()), schema=schema(REJECTED), orient="row")

    def _checked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        reason = row["fault"] or (refusing_check(row["of"], self.checks) if self.checks is not None else "")
        own = {name: row[name] for name in ("sample_id", "kind", "length")}
        own["detail"] = row["details"].get(reason, "")
        return {**own, "accepted": not reason, "reason": reason, **row["of"], "figures": " ".join(row["digests"])}

    def _compute(self, name: str, rows: Sequence[dict[str, Any]], saver: RowSaver | None) -> None:
        if name == VERBATIM:
            for row in rows:
                read_verbatim(row)
        elif name == ASKED:
            self._ask_without_context(rows)
        elif name == AGREEMENT:
            self._ask_again(rows)
        elif rows:
            self._score(name, rows, saver)

    def _score(self, name: str, rows: Sequence[dict[str, Any]], saver: RowSaver | None) -> None:
        """Compute a gain of each row; the probabilities given all passages are computed once."""
        given: list[Given] = []
        counts: list[int] = []
        for row in rows:
            found = self._contexts(name, row)
            contexts = found if row["of"]["probability"] is not None else [BETWEEN.join(row["passages"]), *found]
            given += [Given(context=each, question=row["question"], answer=row["answer"]) for each in contexts]
            counts.append(len(contexts))
        # All rows in one call, so that prompts of several candidates fill a batch.
        scored = self.score(given)
        for row, count in zip(rows, counts, strict=True):
            found = [next(scored) for _ in range(count)]
            bad = next((each for each in found if isinstance(each, Reject)), None)
            if bad is not None:
                row["fault"], row["details"][UNSCORABLE] = UNSCORABLE, bad.reason
                continue
            of, parts = row["of"], [each for each in found if not isinstance(each, Reject)]
            if of["probability"] is None:
                of["probability"] = parts.pop(0).tolist()
            whole = np.asarray(of["probability"], dtype=np.float32)
            gains = [gain(whole, each) for each in parts]
            of[name] = min(gains)
            if name == NEEDED:
                of["passage_gains"] = gains
            if saver is not None:
                saver.add(self._checked(row))
        if saver is not None:
            saver.save()  # before the next check, which may ask a server for long

    def _contexts(self, name: str, row: Mapping[str, Any]) -> list[str]:
        """Return the contexts that a check compares with the passages."""
        if name == CLOSED_BOOK:
            return [""]
        if name == NEAR_ONLY:
            return [self.near_end(row["context"])]
        return without_each(row["passages"])[1:] if name == NEEDED else [row["context"]]

    def _ask_without_context(self, rows: Sequence[dict[str, Any]]) -> None:
        for repeat in _REPEATS[ASKED]:
            left = [row for row in rows if row["of"][ASKED] != 0.0]
            replies = self._replies(left, ASKED, repeat)
            for row in left:
                if row["sample_id"] in replies:
                    row["of"][ASKED] = float(not agrees(row["answer"], replies[row["sample_id"]]))

    def _ask_again(self, rows: Sequence[dict[str, Any]]) -> None:
        (repeat,) = _REPEATS[AGREEMENT]
        replies = self._replies(rows, AGREEMENT, repeat)
        found = {
            row["sample_id"]: (row["question"], row["answer"], replies[row["sample_id"]])
            for row in rows
            if row["sample_id"] in replies
        }
        if self.same is not None:
            compared = {name: texts for name, texts in found.items() if len(texts[2]) <= MOST_LETTERS}
            same = {**dict.fromkeys(found.keys() - compared.keys(), False), **self.same(compared)}
        else:
            same = {name: agrees(answer, other) for name, (_, answer, other) in found.items()}
        for row in rows:
            if row["sample_id"] in same:
                row["of"][AGREEMENT] = float(same[row["sample_id"]])
            elif row["sample_id"] in found:
                self.unanswered[row["sample_id"]] = "the judge has not compared the answers"
            if row["sample_id"] in found:
                row["details"][AGREEMENT] = f"the second answer is {found[row['sample_id']][2][:100]!r}"

    def _replies(self, rows: Sequence[Mapping[str, Any]], check: str, repeat: int) -> Mapping[str, str]:
        wanted = [_answer_call(self.generating.settings, row, check, repeat) for row in rows]
        found = self.generating.texts(wanted)
        for row in rows:
            if (name := row["sample_id"]) not in found:
                self.unanswered[name] = self.generating.unanswered.get(name, "no reply")
        return found


def candidate_rows(
    questions: pl.DataFrame, contexts: pl.DataFrame, scorer: FigureDigests, before: pl.DataFrame | None
) -> list[dict[str, Any]]:
    """Return the candidates with their texts, the fault that already refuses them, and the digests of their figures.

    `of`: figures of the same texts and scorer from `before`, rows of CHECKED. `known`: whether `before` has a row
    about the same passages, question and answer. `was_unscorable`: whether theta_B could not read the candidate.
    `details`: explanations by reason.
    """
    texts = dict(contexts.select("sample_id", "context").iter_rows())
    known, unscorable = _known_figures(before)
    rows = []
    for row in questions.sort("sample_id").iter_rows(named=True):
        passages = [each["text"] for each in row["passages"]]
        context = texts.get(row["sample_id"], "")
        digests = _figure_digests(scorer, row["question"], row["answer"], passages, context)
        old: dict[str, Any] = {}
        for digest in digests:
            old |= known.get(digest, {})
        own = {name: row[name] for name in ("sample_id", "kind", "length", "question", "answer", "evidence", "fault")}
        rows.append(
            {
                **own,
                "passages": passages,
                "context": context,
                "details": {AGREEMENT: old["detail"]} if "detail" in old else {},
                "digests": digests,
                "known": digests[0] in known,
                "was_unscorable": " ".join(digests[:3]) in unscorable,
                "of": {VERBATIM: None, **{name: old.get(name) for name in _KEPT}},
            }
        )
    return rows


def _figure_digests(
    scorer: FigureDigests, question: str, answer: str, passages: Sequence[str], context: str
) -> list[str]:
    # One digest for each figure's inputs, in the order of _FIGURES_OF: a new context then leaves the figures of the
    # passages valid.
    parts = {
        "passages": [scorer.model, *passages],
        NEAR_ONLY: [scorer.model, scorer.near, context, *passages],
        ROBUST: [scorer.model, context, *passages],
        ASKED: [scorer.answers],
        AGREEMENT: [scorer.answers, scorer.comparison, *passages],
    }
    return [text_digest([name, question, answer, *parts[name]])[:24] for name in _FIGURES_OF]


def _known_figures(before: pl.DataFrame | None) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return the figures in CHECKED by their digests, and the digests of theta_B's figures of unscorable candidates.

    If there are several rows about a candidate, each may hold other figures.
    """
    known: dict[str, dict[str, Any]] = {}
    unscorable: set[str] = set()
    for row in [] if before is None else before.iter_rows(named=True):
        digests = row["figures"].split()
        # A table of an earlier version has a single digest for all figures.
        for digest, names in zip(digests, _FIGURES_OF.values(), strict=False):
            known.setdefault(digest, {}).update({name: row[name] for name in names if row[name] is not None})
        if row["reason"] == AGREEMENT:
            known[digests[-1]]["detail"] = row["detail"]
        if row["reason"] == UNSCORABLE:
            unscorable.add(" ".join(digests[:3]))
    return known, unscorable


def read_verbatim(row: dict[str, Any]) -> None:
    """Compute the figure of the check `verbatim` for one of `candidate_rows`."""
    fault = verbatim_fault(row["passages"], row["question"], row["answer"], row["evidence"])
    row["of"][VERBATIM], row["details"][VERBATIM] = float(not fault), fault


def needs(row: Mapping[str, Any], name: str, checks: SynthesisChecksConfig) -> bool:
    """Return whether a configured check still has to compute its figure, and no earlier check refuses the candidate."""
    if row["of"][name] is not None or row["fault"] or not _is_configured(row, name, checks):
        return False
    return not refusing_check({each: row["of"][each] for each in CHECKS[: CHECKS.index(name)]}, checks)


def _is_configured(row: Mapping[str, Any], name: str, checks: SynthesisChecksConfig) -> bool:
    if name == AGREEMENT:
        return checks.agreement == "judge" or (checks.agreement == "exact" and row["kind"] != "summary")
    if name == ASKED:
        return checks.ask_without_context
    return name == VERBATIM or getattr(checks, name) is not None


@dataclass(frozen=True, kw_only=True)
class Outstanding:
    """The remaining work for the checks of some candidates.

    certain: requests about candidates that passed all earlier checks. possible: requests about candidates that earlier
    checks or replies may still refuse. new: number of candidates without stored figures. passed: number of candidates
    that their stored figures accept. undecided: number of candidates that reach a check without a stored figure.
    """

    certain: list[ServerCall] = field(default_factory=list)
    possible: list[ServerCall] = field(default_factory=list)
    new: int = 0
    passed: int = 0
    undecided: int = 0

    def __add__(self, other: Outstanding) -> Outstanding:
        return Outstanding(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def outstanding(
    rows: Sequence[dict[str, Any]], checks: SynthesisChecksConfig, settings: GeneratorConfig
) -> Outstanding:
    """Return the remaining work for the checks of `candidate_rows`. This runs no model and sends no request."""
    certain, possible, new, passed, undecided = list[ServerCall](), list[ServerCall](), 0, 0, 0
    for row in rows:
        if not row["fault"]:
            read_verbatim(row)
        # An unscorable candidate is tried again, but is expected to stay unscorable.
        missing = [name for name in CHECKS if needs(row, name, checks) and not row["was_unscorable"]]
        for name in missing:
            for repeat in _REPEATS.get(name, ()):
                is_first = name == missing[0] and repeat == _REPEATS[name][0]
                (certain if is_first else possible).append(_answer_call(settings, row, name, repeat).asked)
        new += not row["known"]
        undecided += row["known"] and bool(missing)
        refused = row["fault"] or row["was_unscorable"] or refusing_check(row["of"], checks)
        passed += row["known"] and not missing and not refused
    return Outstanding(certain=certain, possible=possible, new=new, passed=passed, undecided=undecided)


def most_answers(checks: SynthesisChecksConfig) -> int:
    """Return the largest number of second answers to one question."""
    configured = {ASKED: checks.ask_without_context, AGREEMENT: checks.agreement is not None}
    return sum(len(repeats) for name, repeats in _REPEATS.items() if configured[name])


def is_second_answer(asked: ServerCall) -> bool:
    """Return whether an `outstanding` request is for the answer to compare."""
    return asked.repeat in _REPEATS[AGREEMENT]


def _answer_call(settings: GeneratorConfig, row: Mapping[str, Any], check: str, repeat: int) -> GeneratorCall:
    prompt = answer_prompt(row["question"], row["passages"] if check == AGREEMENT else [])
    return call(settings, row["sample_id"], prompt, repeat=repeat)


def near_end(tokenizer: PreTrainedTokenizerBase, tokens: int, context: str) -> str:
    """Return the last `tokens` tokens of a context, but at most a quarter of the context."""
    from gateau_dagster.models.prompt import token_offsets

    offsets = [begin for begin, end in token_offsets(tokenizer, context) if end > begin]
    # A quarter at most: the end of a short context would otherwise hold the passages, and no question could pass.
    count = max(1, min(tokens, len(offsets) // 4))
    return context[offsets[-count] :] if offsets else ""


_SAME = """Two answers to one question follow. Do both say the same, whatever their words? Reply [[yes]] or [[no]].

Question: {question}

First answer: {answer}

Second answer: {other}"""
_VERDICT = re.compile(r"\[\[(yes|no)\]\]", re.IGNORECASE)
_VERDICT_TOKENS = 256


def same_by_judge(
    settings: JudgeConfig, judge: Judge, replies: Replies, found: Mapping[str, tuple[str, str, str]]
) -> Mapping[str, bool]:
    """Return by candidate whether `evaluation.judge` finds that two answers agree; without a verdict, none is returned.

    Raises:
        UnusableServerError, BudgetError, TransientError: see Asking.
    """
    wanted = [verdict_call(settings, name, *texts) for name, texts in found.items()]
    asking: Asking[GeneratorCall, bool] = Asking(_same, 1, judge, replies, settings)
    made = [result for result in asking.results(wanted) if result is not None]
    verdicts = {each.sample_id: got.value for each, got in made if not isinstance(got, UnansweredError)}
    if wanted and not verdicts:
        asking.patience.check()
    return {name: value for name, value in verdicts.items() if value is not None}


def verdict_call(settings: JudgeConfig, sample_id: str, question: str, answer: str, other: str) -> GeneratorCall:
    """Return the request to the judge to compare two answers to a question."""
    messages = [{"role": "user", "content": _SAME.format(question=question, answer=answer, other=other)}]
    request = JudgeRequest(question_id=sample_id, turn=0, messages=messages, max_tokens=_VERDICT_TOKENS)
    return GeneratorCall(sample_id=sample_id, asked=ServerCall.of(settings, request))


def _same(reply: str) -> bool | None:
    found = _VERDICT.findall(reply)
    return found[-1].lower() == "yes" if found else None


def yield_sentence(checked: pl.DataFrame, lost: pl.Series) -> str:
    """Return a text such as `3 of 24 candidates accepted: duplicate 16, verbatim 5`.

    Args:
        checked: `reason` and `accepted` of CHECKED.
        lost: the reasons why the other candidates have no reply, from tables.REJECTED.
    """
    named = ", ".join(f"{name} {number:,}" for name, number in _refusals(checked, lost))
    total = plural(checked.height + lost.len(), "candidate")
    return f"{int(checked['accepted'].sum()):,} of {total} accepted{': ' if named else ''}{named}"


def _refusals(checked: pl.DataFrame, lost: pl.Series) -> list[tuple[str, int]]:
    reasons = checked.filter(~pl.col("accepted"))["reason"].value_counts(name="count")
    counts = sorted(reasons.iter_rows(), key=lambda each: (-each[1], each[0]))
    return [*counts, *([(NO_REPLY, lost.len())] if lost.len() else [])]


def none_accepted(checked: pl.DataFrame, lost: pl.Series, partly_read: str) -> str:
    """Return `yield_sentence` for no accepted candidate, with the meaning of each reason and a fix.

    `partly_read`: a sentence about prompts that the generator read only in part, or empty.
    """
    if not checked.height and not lost.len():
        return (
            "synthesis: there are no candidates, because the documents offer no passages that share a term. Give "
            "longer documents or more of them, or lower synthesis.passage_words."
        )
    lines = [f"synthesis: {yield_sentence(checked, lost)}. In `synthesis`:"]
    for name, _ in _refusals(checked, lost):
        if name == NO_REPLY:
            lines.append(f"  {name}: mostly {lost.value_counts(sort=True)[lost.name][0]}; correct synthesis.generator")
        else:
            lines.append(f"  {name}: {_CURES[name]}")
    lines += [f"{partly_read}."] if partly_read else []
    return "\n".join(
        [*lines, f"`{gateau_command('validate --synthesis')}` shows a candidate of each kind. Then run again."]
    )


def accepted_samples(questions: pl.DataFrame, contexts: pl.DataFrame, checked: pl.DataFrame) -> pl.DataFrame:
    """Return tables.RAW_LONG_SFT of the accepted candidates; the source is `synthetic/<kind>`."""
    return as_samples(questions, contexts, checked.filter("accepted"))


def as_samples(questions: pl.DataFrame, contexts: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return tables.RAW_LONG_SFT of the candidates in `chosen` that have a context."""
    joined = chosen.select("sample_id").join(questions, on="sample_id").join(contexts, on="sample_id").sort("sample_id")
    samples = [
        Sample(
            sample_id=row["sample_id"],
            source=f"synthetic/{row['kind']}",
            context=row["context"],
            instruction=row["question"],
            response=row["answer"],
        )
        for row in joined.iter_rows(named=True)
    ]
    names = schema(RAW_LONG_SFT).names()
    rows = [tuple(getattr(sample, name) for name in names) for sample in samples]
    return pl.DataFrame(rows, schema=schema(RAW_LONG_SFT), orient="row")
