"""The checks refuse what does not need its context, the cheapest first, and compute no figure twice."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from gateau_dagster.data.sample import Reject
from gateau_dagster.errors import MASK
from gateau_dagster.features.evaluation.judging.asking import BudgetError
from gateau_dagster.features.evaluation.judging.replies import Replies, ServerCall
from gateau_dagster.features.evaluation.servers import BudgetConfig
from gateau_dagster.features.synthesis.candidate_checks import (
    AGREEMENT,
    ASKED,
    CHECKED,
    CHECKS,
    CLOSED_BOOK,
    NEAR_ONLY,
    NEEDED,
    ROBUST,
    UNSCORABLE,
    VERBATIM,
    Checking,
    FigureDigests,
    Given,
    Outstanding,
    Probabilities,
    accepted_samples,
    agrees,
    candidate_rows,
    gain,
    is_second_answer,
    most_answers,
    outstanding,
    refusing_check,
    same_by_judge,
    verbatim_fault,
    without_each,
)
from gateau_dagster.features.synthesis.config import GeneratorConfig, SynthesisChecksConfig
from gateau_dagster.features.synthesis.contexts import CONTEXTS
from gateau_dagster.features.synthesis.questions import (
    QUESTIONS,
    Generating,
    Written,
    call,
    own_answer_prompt,
    own_question_prompt,
    read_json,
)
from gateau_dagster.storage.files import Files
from gateau_dagster.tables import schema
from tests.features.evaluation.judges import FakeJudge, settings

PASSAGES = ["Ann lives in Rome.", "Bob lives in Oslo."]
EVIDENCE = ["lives in Rome", "lives in Oslo"]
tokens = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=60)


def slow_gain(more: Sequence[float], less: Sequence[float]) -> float:
    """The equation, read off: the mean of the k largest positive parts, k = max(2, ceil(n / 10))."""
    parts = sorted((max(0.0, a - b) for a, b in zip(more, less, strict=True)), reverse=True)
    kept = parts[: max(2, math.ceil(len(parts) / 10))]
    return sum(kept) / len(kept)


@for_all(tokens, st.randoms())
def test_a_gain_is_the_mean_of_the_largest_rises(more: list[float], random: Any) -> None:
    less = [random.random() for _ in more]
    found = gain(np.array(more, dtype=np.float32), np.array(less, dtype=np.float32))
    assert found == pytest.approx(slow_gain(more, less), abs=1e-6) and 0 <= found <= 1


@pytest.mark.parametrize(
    ("question", "answer", "evidence", "fault"),
    [
        ("Who?", "Ann and Bob", EVIDENCE, ""),
        ("Who?", "Ann", ["LIVES  in\nrome", "Bob"], ""),
        ("Who?", "Ann", EVIDENCE[:1], "1 pieces"),
        ("Who?", "Ann", ["lives in Rome", " "], "1 pieces"),
        ("Who?", "Ann", EVIDENCE[::-1], "passage 1"),
        ("Who?", "Ann", ["lives in Rome", "lives in Paris"], "passage 2"),
        ("Is it ann, or Bob?", "Ann", EVIDENCE, "holds the answer"),
        ("Is it Annabel?", "Ann", EVIDENCE, ""),
        ("Who?", "Ann", ["lives in Rome", "lives in ***"], "a secret"),
        ("Who?", "***", EVIDENCE, "a secret"),
        ("Who?", "?!", EVIDENCE, "no word"),
    ],
)
def test_evidence_and_question_are_read_word_for_word(
    question: str, answer: str, evidence: Sequence[str], fault: str
) -> None:
    found = verbatim_fault(PASSAGES, question, answer, evidence)
    assert (fault in found) if fault else not found
    assert verbatim_fault([], question, answer, []), "without passages there is no evidence"


@pytest.mark.parametrize(
    ("answer", "other", "same"),
    [
        ("Rome", "rome.", True),
        ("the Tiber", "Tiber", True),
        ("3.5", "35", False),
        ("x y", "y x", False),
        ("", "", False),
    ],
)
def test_answers_agree_by_their_words(answer: str, other: str, same: bool) -> None:
    assert agrees(answer, other) == same


def test_the_first_check_that_fails_names_the_reason() -> None:
    passing = dict.fromkeys(CHECKS, 1.0) | {ROBUST: 0.0}
    every = SynthesisChecksConfig(ask_without_context=True)
    assert refusing_check(passing, every) == ""
    for place, name in enumerate(CHECKS):
        failing = {each: 1.0 if each == ROBUST else 0.0 for each in CHECKS[place:]}
        assert refusing_check(passing | failing, every) == name
    none = SynthesisChecksConfig(closed_book=None, near_only=None, needed=None, robust=None, agreement=None)
    failing = {name: 1.0 if name == ROBUST else 0.0 for name in CHECKS}
    assert refusing_check(failing | {VERBATIM: 1.0}, none) == ""
    assert refusing_check(dict.fromkeys(CHECKS), every) == "", "what is not computed refuses nothing"


def test_all_but_each_passage() -> None:
    assert without_each(["a", "b", "c"]) == ["a\n\nb\n\nc", "b\n\nc", "a\n\nc", "a\n\nb"]
    assert without_each(["a"]) == ["a", ""]


# A theta_B that knows the words of its context: each word of an answer has probability 1 if the context holds it.


class WordModel:
    """Counts what it reads."""

    def __init__(self) -> None:
        self.read: list[Given] = []

    def __call__(self, given: Sequence[Given]) -> Iterator[Probabilities | Reject]:
        for each in given:
            self.read.append(each)
            if each.answer == "too long":
                yield Reject(sample_id="", reason="no room")
                continue
            known = {*each.context.replace(".", " ").split()}
            yield np.array([float(word in known) for word in each.answer.split()], dtype=np.float32)


def tables(*rows: Mapping[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return questions and contexts; each row differs from an honest one in the given fields."""
    asked, built = [], []
    for number, row in enumerate(rows):
        passages = [{"start": 0, "end": 1, "text": text} for text in PASSAGES]
        honest = {
            "sample_id": f"{number:02d}",
            "document": "d",
            "kind": "two_passages",
            "number": 0,
            "length": 64,
            "term": "lives",
            "passages": passages,
            "question": f"Where do both live, {number}?",
            "answer": "Rome Oslo",
            "evidence": EVIDENCE,
            "reasoning": "",
            "fault": "",
        }
        context = row.get("context", " ".join([*PASSAGES, *["Filler."] * 20]))
        asked.append({**honest, **{name: value for name, value in row.items() if name != "context"}})
        built.append((honest["sample_id"], "passages", context, 9, []))
    questions = pl.DataFrame(asked, schema=schema(QUESTIONS), orient="row")
    return questions, pl.DataFrame(built, schema=schema(CONTEXTS), orient="row")


def checking(folder: Any, model: WordModel, reply: str = "Rome Oslo", **checks: Any) -> tuple[Checking, FakeJudge]:
    generator = GeneratorConfig(base_url="http://x/v1", model="m", key=None, concurrency=1)
    judge = FakeJudge(lambda asked: "Rome" if "[Passage" not in asked.messages[0]["content"] else reply)
    replies = Replies(Files(str(folder)), "m", generator.replies_folder)
    found = Checking(
        checks=SynthesisChecksConfig.model_validate(checks),
        score=model,
        near_end=lambda context: " ".join(context.split()[-4:]),
        generating=Generating(settings=generator, judge=judge, replies=replies),
    )
    return found, judge


ROWS: dict[str, dict[str, Any]] = {
    "": {},
    VERBATIM: {"evidence": ["nowhere", "lives in Oslo"]},
    CLOSED_BOOK: {"answer": "of course"},
    NEAR_ONLY: {"context": "Filler. " * 20 + "Rome Oslo Ann Bob"},
    NEEDED: {"answer": "Rome Ann"},
    ROBUST: {"context": "Filler. " * 20},
    UNSCORABLE: {"answer": "too long"},
    "declined": {"fault": "declined"},
}


def test_each_cheat_ends_at_its_check_and_later_figures_are_not_computed(tmp_path: Any) -> None:
    model = WordModel()
    work, judge = checking(tmp_path, model)
    questions, contexts = tables(*ROWS.values())
    found = work.table(questions, contexts)
    assert found["reason"].to_list() == [*ROWS]
    assert found["accepted"].to_list() == [not reason for reason in ROWS]
    for row in found.iter_rows(named=True):
        if row["reason"] in CHECKS:
            later = CHECKS[CHECKS.index(row["reason"]) + 1 :]
            assert all(row[name] is None for name in later)
    assert len(judge.asked) == 1, "only the honest one comes to the second answer"
    samples = accepted_samples(questions, contexts, found)
    assert samples.rows() == [("00", "synthetic/two_passages", *samples.row(0)[2:])]
    assert samples["response"].to_list() == ["Rome Oslo"]


def test_a_second_answer_must_agree_and_the_closed_book_may_be_asked(tmp_path: Any) -> None:
    work, _ = checking(tmp_path / "a", WordModel(), reply="Paris")
    assert work.table(*tables({}))["reason"].to_list() == [AGREEMENT]
    work, judge = checking(tmp_path / "b", WordModel(), ask_without_context=True)
    found = work.table(*tables({}, {"answer": "Rome Oslo"}))
    assert found["reason"].to_list() == ["", ""] and len(judge.asked) == 6
    work, judge = checking(tmp_path / "c", WordModel(), ask_without_context=True, needed=None)
    found = work.table(*tables({"answer": "Rome"}))
    assert found["reason"].to_list() == [ASKED] and len(judge.asked) == 1, "one right answer is enough"


def test_another_threshold_computes_and_asks_nothing_again(tmp_path: Any) -> None:
    model = WordModel()
    work, judge = checking(tmp_path, model)
    given = tables(*ROWS.values())
    before = work.table(*given)
    read, asked = len(model.read), len(judge.asked)
    work, other = checking(tmp_path, model, needed=0.9)
    after = work.table(*given, before)
    assert after["reason"][0] == NEEDED and before["reason"][0] == ""
    unscored = 2  # a sample that could not be scored is tried again
    assert (len(model.read) - read, len(other.asked)) == (unscored, 0) and asked == 1
    work, other = checking(tmp_path, model)
    assert work.table(*given, after).equals(before) and not other.asked


def planned(work: Checking, given: tuple[pl.DataFrame, pl.DataFrame], before: pl.DataFrame) -> Outstanding:
    assert work.checks is not None
    return outstanding(candidate_rows(*given, work.scorer, before), work.checks, work.generating.settings)


def digests(asked: Sequence[ServerCall]) -> list[str]:
    return sorted(each.digest for each in asked)


def test_a_stricter_threshold_asks_nobody_and_a_looser_one_about_those_that_newly_come_to_a_check(
    tmp_path: Any,
) -> None:
    given = tables(*ROWS.values(), {}, {"context": "Filler. " * 20})
    work, judge = checking(tmp_path, WordModel())
    before = work.table(*given)
    first = digests(judge.asked)
    assert len(first) == 2, "the honest ones"
    work, judge = checking(tmp_path, WordModel(), closed_book=0.9, needed=0.6)
    found = planned(work, given, before)
    assert (found.certain, found.possible, found.new, found.passed, found.undecided) == ([], [], 0, 0, 0)
    stricter = work.table(*given, before)
    assert not judge.asked and not stricter["accepted"].any()
    work, judge = checking(tmp_path, WordModel(), robust=1.0)
    found = planned(work, given, stricter)
    assert (len(found.certain), found.possible, found.passed, found.undecided) == (2, [], 2, 2)
    looser = work.table(*given, stricter)
    assert digests(judge.asked) == digests(found.certain) and not {*first} & {*digests(judge.asked)}
    assert looser["accepted"].sum() == 4
    work, judge = checking(tmp_path, WordModel(), robust=1.0, closed_book=0.0)
    found = planned(work, given, looser)
    assert (found.certain, len(found.possible), found.undecided) == ([], 1, 1), "theta_B has to read one more first"
    assert work.table(*given, looser)["reason"][2] == NEAR_ONLY and not judge.asked
    work, judge = checking(tmp_path, WordModel())
    assert planned(work, given, looser).certain == planned(work, given, looser).possible == []
    assert work.table(*given, looser)["reason"].equals(before["reason"]) and not judge.asked


def test_before_any_figure_every_answer_is_possible(tmp_path: Any) -> None:
    work, _ = checking(tmp_path, WordModel(), ask_without_context=True)
    assert work.checks is not None and most_answers(work.checks) == 3
    given = tables({}, {"fault": "declined"})
    found = planned(work, given, pl.DataFrame(schema=schema(CHECKED)))
    assert (found.certain, len(found.possible), found.new, found.undecided) == ([], 3, 2, 0)
    assert [is_second_answer(each) for each in found.possible] == [False, False, True]


def test_other_texts_are_checked_again(tmp_path: Any) -> None:
    model = WordModel()
    work, _ = checking(tmp_path, model)
    before = work.table(*tables({}))
    read = len(model.read)
    work.table(*tables({"answer": "Oslo Rome"}), before)
    assert len(model.read) > read


def test_a_judge_compares_the_answers_and_no_verdict_is_counted(tmp_path: Any) -> None:
    replies = Replies(Files(str(tmp_path)), "judge")
    judge = FakeJudge(lambda asked: "[[yes]]" if "one?" in asked.messages[0]["content"] else "hm")
    found = same_by_judge(settings(), judge, replies, {"a": ("one?", "x", "y"), "b": ("two?", "x", "y")})
    assert found == {"a": True}
    work, _ = checking(tmp_path / "a", WordModel(), agreement="judge")
    work.same = lambda found: {}
    assert work.table(*tables({})).is_empty() and work.rejected()["sample_id"].to_list() == ["00"]


def test_gains_of_a_model_are_those_of_the_slow_twin() -> None:
    from gateau_dagster.config import ScoringConfig
    from gateau_dagster.features.synthesis.candidate_checks import answer_probabilities
    from tests.kit.tiny_models import loaded_model

    model, scoring = loaded_model("llama"), ScoringConfig(max_length=512, dtype="float32", device="cpu")
    given = [Given(context=each, question="Where?", answer="Rome Oslo") for each in without_each(PASSAGES)]
    whole, *others = answer_probabilities(model, given, scoring, max_length=512)
    assert isinstance(whole, np.ndarray)
    assert all(isinstance(each, np.ndarray) for each in others)
    expected = [slow_gain(whole.tolist(), np.asarray(each).tolist()) for each in others]
    assert [gain(whole, np.asarray(each)) for each in others] == pytest.approx(expected, abs=1e-6)


def test_a_generator_may_think_before_its_second_answer(tmp_path: Any) -> None:
    found, _ = checking(tmp_path, WordModel(), reply='<think>{"or": "Bergen"}?</think>\n\nRome Oslo')
    assert found.table(*tables({}))["accepted"].to_list() == [True]


def test_a_generator_may_think_of_json_before_its_question(tmp_path: Any) -> None:
    thought = '<think>Not {"question": "x"}, nor {"question": "Where?", "answer": "Bergen"}}.</think>\n'
    replies = {"a": thought + json.dumps({"question": "Who?", "answer": "Ann"}), "b": thought}
    judge = FakeJudge(lambda asked: replies[asked.messages[0]["content"]])
    settings = GeneratorConfig(base_url="http://x/v1", model="m", key=None)
    generating = Generating(settings=settings, judge=judge, replies=Replies(Files(str(tmp_path)), "m"))
    found = generating.read([call(settings, name, name) for name in replies], read_json)
    assert found == {"a": Written(question="Who?", answer="Ann", evidence=(), reasoning=""), "b": None}


def test_a_reply_loses_secrets_of_the_environment_alone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENERATOR_KEY", "qwsxzaplmokn")
    said = "postgres://me:Password7@host with sk-0123456789abcdefghij and qwsxzaplmokn"
    settings = GeneratorConfig(base_url="http://x/v1", model="m", key=None)
    replies = Replies(Files(str(tmp_path)), "m")
    generating = Generating(settings=settings, judge=FakeJudge(lambda _: said), replies=replies)
    (found,) = generating.texts([call(settings, "a", "?")]).values()
    assert found == said.replace("qwsxzaplmokn", MASK)
    assert not any(b"qwsxzap" in file.read_bytes() for file in tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ('{"question": "How many?", "answer": 3, "evidence": ["a", "b"]}', ("How many?", "3", ("a", "b"), "")),
        ('{"question": "How far?", "answer": 2.5, "reasoning": "so"}', ("How far?", "2.5", (), "so")),
        ('{"question": "?", "answer": "x", "evidence": null, "reasoning": null}', ("?", "x", (), "")),
        ('{"question": "?", "answer": "x", "evidence": "a", "reasoning": ["1", "2"]}', ("?", "x", ("a",), "")),
        ('{"question": "?", "answer": "x", "reasoning": "\\ud800"}', ("?", "x", (), "")),
        ('{"question": ""}', ("", "", (), "")),
        ('{"question": null, "answer": null}', ("", "", (), "")),
        ('{"question": "?", "answer": ""}', ("?", "", (), "")),
        ('{"question": "?"}', None),
        ('{"answer": "x"}', None),
        ('{"question": "?", "answer": true}', None),
        ('{"question": "?", "answer": NaN}', None),
        ('{"question": "?", "answer": 1e999}', None),
        ('{"question": "?", "answer": 1' + "0" * 400 + "}", ("?", "1" + "0" * 400, (), "")),
        ('{"question": "?", "answer": ["x"]}', None),
        ('{"question": "?", "answer": "x", "evidence": {}}', None),
        ('{"question": "?", "answer": "x", "evidence": ["a", 1]}', None),
        ('{"question": "?", "answer": "\\ud800"}', None),
    ],
)
def test_a_reply_is_read_by_what_it_says(reply: str, read: tuple[str, str, tuple[str, ...], str] | None) -> None:
    found = read_json(reply)
    assert (None if found is None else (found.question, found.answer, found.evidence, found.reasoning)) == read


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (r"\frac{1}{2} \nu", r"\frac{1}{2} \nu"),
        (r"\beta, \tau and \rho", r"\beta, \tau and \rho"),
        (r"a \theta b \times c", r"a \theta b \times c"),
        (r"\alpha \(x\) \underline{y} 5 \% \left[", r"\alpha \(x\) \underline{y} 5 \% \left["),
        (r"\\frac and \nu", r"\frac and \nu"),
        (r"$\nu$ is", r"$\nu$ is"),
        (r"\nu", r"\nu"),
        (r"\\nu \\to \\beta", r"\nu \to \beta"),
        (r"one\ntwo\tthree\r\nfour", "one\ntwo\tthree\r\nfour"),
        (r"so \nu is", "so \nu is"),  # it may be a line that begins with u
        (r"a\tan apple\nor not\nThe rest\nullam", "a\tan apple\nor not\nThe rest\nullam"),
        (r"caf\u00e9 \u4e2d", "caf\u00e9 \u4e2d"),
        (r"it\'s \"so\" 1\/2 C:\\new", 'it\'s "so" 1/2 C:\\new'),
        (r"a bell\u0007", None),
        (r"x\f", None),
        (r"x\b.", None),
        (r"x\u0000", None),
    ],
)
def test_latex_keeps_its_backslash_and_a_line_break_is_one(said: str, answer: str | None) -> None:
    found = read_json(f'{{"question": "Which?", "answer": "{said}", "evidence": ["{said}"]}}')
    assert (None if found is None else found.answer) == answer
    assert found is None or found.evidence == (answer,)


@pytest.mark.parametrize(
    "reply",
    [
        "{}\nNote: I used {Passage 1}.",
        'The passages {1} and {2}: {} {"note": "done"}',
        '{"question": "…", "answer": "…"}\n```json\n{}\n```',
        "[{}]",
        '{"result": {}',
        '{"question": "?", "answer": ["x"]} or rather {}',
    ],
)
def test_what_is_around_a_reply_in_json_is_left_out(reply: str) -> None:
    asked = '{"question": "Who?", "answer": "Ann", "evidence": ["by Ann"]}'
    assert read_json(reply.replace("{}", asked)) == Written(
        question="Who?", answer="Ann", evidence=("by Ann",), reasoning=""
    )
    twice = asked.replace('"answer"', '"answer": "Bo", "answer"')
    assert read_json(reply.replace("{}", twice)) is None or "…" in reply


def test_an_answer_alone_needs_no_question() -> None:
    assert read_json('{"answer": ""}', asks=False) == Written(question="", answer="", evidence=(), reasoning="")
    assert read_json('{"question": "?"}', asks=False) is None


@pytest.mark.parametrize(
    ("question", "answer", "is_held"),
    [
        ("北京是哪个国家的首都?", "北京", True),
        ("这个国家的首都是哪里?", "北京。", False),
        ("第三个城市是哪里?", "三", False),
        ("What is Ann's city?", "Ann", True),
        ("What is Ann’s city?", "Ann", True),
        ("Which Rome-based firm?", "Rome", True),
        ("What is Anna's city?", "Ann", False),
        ("Which Roman firm of Ann and Bob?", "Ann of Rome", False),
        ("Who of Ann and Bob?", "Bob and Ann", False),
        ("Which of the 3.5 million?", "3", False),
        ("Which of the 13个?", "3个", False),
        ("Which of the 1,000?", "1,000", True),
    ],
)
def test_an_answer_is_looked_for_word_by_word(question: str, answer: str, is_held: bool) -> None:
    assert ("holds the answer" in verbatim_fault(PASSAGES, question, answer, EVIDENCE)) == is_held


@pytest.mark.parametrize(
    ("passage", "quote", "fault"),
    [
        ("I live in Italy.", "i", "too short"),
        ("He lives in Rome.", "live", "not in it"),
        ("He lives in _Rome_.", "lives in _rome", ""),
        ("He lives in _Rome_.", "Rome", ""),
        ("Outlive. They live.", "live.", ""),
        ("他住在北京。", "住在", ""),
        ("他住在北京。", "住", "too short"),
        ("He lives in Rome.", ".", "too short"),
    ],
)
def test_evidence_is_whole_words_that_tell_something(passage: str, quote: str, fault: str) -> None:
    found = verbatim_fault([passage], "Who?", "Ann", [quote])
    assert (fault in found) if fault else not found


def test_a_detail_is_about_the_reason_of_its_row(tmp_path: Any) -> None:
    given = tables({})
    before = checking(tmp_path / "a", WordModel(), reply="Paris")[0].table(*given)
    assert before.select("reason", "detail").row(0) == (AGREEMENT, "the second answer is 'Paris'")
    stricter = checking(tmp_path / "b", WordModel(), needed=0.9)[0].table(*given, before)
    assert stricter.select("reason", "detail").row(0) == (NEEDED, "")
    without = checking(tmp_path / "c", WordModel(), agreement=None)[0].table(*given, before)
    assert without.select("reason", "detail").row(0) == ("", "")


@pytest.mark.parametrize("letter", ["a", "字", "é", "𝔸"])
def test_a_document_is_shown_as_far_as_the_generator_reads(letter: str) -> None:
    settings = GeneratorConfig(base_url="http://x/v1", model="m", key=None, window=1024, max_tokens=256)
    for prompt in (
        own_question_prompt(settings, letter * 5000),
        own_answer_prompt(settings, letter * 5000, letter * 9),
    ):
        size = len(prompt.encode())
        assert (1024 - 256) * 3 - 8 <= size <= (1024 - 256) * 3 + 64, "the words around the document are few"
        assert letter * 9 in prompt and "\ufffd" not in prompt
    assert own_question_prompt(settings, letter * 9) == letter * 9 + settings.opening
    assert own_answer_prompt(settings, "", letter * 5000)


class Saved(list[Mapping[str, Any]]):
    """The rows that were written."""

    def __init__(self) -> None:
        self.waiting: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        self.waiting.append(row)

    def save(self) -> None:
        self += self.waiting
        self.waiting = []

    @property
    def table(self) -> pl.DataFrame:
        return pl.DataFrame([*self], schema=schema(CHECKED), orient="row")


def test_figures_are_saved_before_a_second_answer_is_asked_for(tmp_path: Any) -> None:
    model, saved = WordModel(), Saved()
    work, _ = checking(tmp_path, model)
    work.generating.settings = work.generating.settings.model_copy(update={"budget": BudgetConfig(requests=0)})
    given = tables({}, {})
    with pytest.raises(BudgetError):
        work.table(*given, saver=saved)
    read = len(model.read)
    work, judge = checking(tmp_path, model)
    found = work.table(*given, saved.table)
    assert len(model.read) == read and len(judge.asked) == 2
    assert found.equals(checking(tmp_path, WordModel())[0].table(*given)), "as without an interruption"


def test_figures_of_an_unanswered_candidate_are_kept(tmp_path: Any) -> None:
    model, saved = WordModel(), Saved()
    work, _ = checking(tmp_path, model, agreement="judge")
    work.same = lambda found: {}
    given = tables({})
    before = work.table(*given)
    assert before.height == 0 and [*work.unanswered] == ["00"]
    work, _ = checking(tmp_path, model, agreement="judge")
    work.same = lambda found: {}
    work.table(*given, before, saved)
    read = len(model.read)
    work, _ = checking(tmp_path, model, agreement="judge")
    work.same = lambda found: dict.fromkeys(found, True)
    again = work.table(*given, saved.table)
    assert len(model.read) == read and again["accepted"].to_list() == [True]


@pytest.mark.parametrize(
    ("part", "computed"),
    [
        ("model", {CLOSED_BOOK, NEAR_ONLY, NEEDED, ROBUST}),
        ("near", {NEAR_ONLY}),
        ("answers", {ASKED, AGREEMENT}),
        ("comparison", {AGREEMENT}),
    ],
)
def test_a_digest_holds_only_what_its_figures_need(part: str, computed: set[str], tmp_path: Any) -> None:
    work, _ = checking(tmp_path, WordModel(), ask_without_context=True)
    before = work.table(*tables({}))
    assert before["reason"].to_list() == [""]
    (row,) = candidate_rows(*tables({}), FigureDigests(**{part: "other"}), before)
    figures = {CLOSED_BOOK, NEAR_ONLY, NEEDED, ROBUST, ASKED, AGREEMENT}
    assert {name for name in figures if row["of"][name] is None} == computed
    assert row["known"] == (part != "model")
    (row,) = candidate_rows(*tables({"context": "Another. " * 30}), work.scorer, before)
    assert {name for name in figures if row["of"][name] is None} == {NEAR_ONLY, ROBUST}
