"""MT-Bench: questions, temperatures and judge prompts are those of FastChat, byte for byte."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.features.evaluation.benchmark import Question
from gateau_dagster.features.evaluation.benchmarks.mt_bench import MtBench, MtBenchOptions
from gateau_dagster.features.evaluation.judged import verdict
from tests.features.evaluation.mt_bench_files import NAMES, NO_MATERIALS, PLAIN, write_files
from tests.kit.error_codes import refused
from tests.kit.project import configured

from . import official


def contents(question: Question, answers: list[str]) -> list[tuple[str, ...]]:
    requests = MtBench(configured(), MtBenchOptions()).requests(question, answers)
    return [tuple(each["content"] for each in request.messages) for request in requests]


def test_questions_have_their_category_s_temperature_and_references_where_the_judge_sees_them(tmp_path: Path) -> None:
    writing, math = write_files(tmp_path).questions(NO_MATERIALS)
    assert (writing.question_id, writing.group, writing.turns) == ("81", "writing", ("Write.", "Again {x}."))
    assert (writing.generation.temperature, math.generation.temperature) == (0.7, 0.0)
    assert writing.generation.max_new_tokens == 1024
    assert (writing.references, math.references) == ((), ("two", "four"))


def test_each_turn_has_its_prompt(tmp_path: Path) -> None:
    writing, math = write_files(tmp_path).questions(NO_MATERIALS)
    assert contents(writing, ["{y}\n", " b "]) == [
        ("Be kind.", "Q Write. A {y}"),
        ("Two.\n\n", "Write. {y} Again {x}. b"),
    ]
    assert contents(math, ["a", "b"]) == [("Be kind.", "Q 1+1? R two A a"), ("Two.\n\n", "four b")]


def test_two_models_answers_stand_side_by_side(tmp_path: Path) -> None:
    benchmark = write_files(tmp_path)
    writing, _ = benchmark.questions(NO_MATERIALS)
    first, second = benchmark.pair_requests(writing, ["a", "b"], ["c", " d\n"])
    assert [each["content"] for each in first.messages] == ["Which?", "Write. a c"]
    assert [each["content"] for each in second.messages] == ["Then?", "Again {x}. a b c d"]
    assert (first.turn, second.turn) == (0, 1)


def test_a_question_of_one_turn_is_judged_once(tmp_path: Path) -> None:
    one = {"question_id": 1, "category": "other", "turns": ["Why?"]}
    (found,) = write_files(tmp_path, questions=[one]).questions(NO_MATERIALS)
    assert found.generation.temperature == 0.7 and len(contents(found, ["a"])) == 1


def _with(**fields: Any) -> list[dict[str, Any]]:
    return [
        {"question_id": 1, "category": "writing", "turns": ["Why?"]},
        {"question_id": 2, "category": "writing", "turns": ["Why?"], **fields},
    ]


def _prompts(template: str) -> list[dict[str, Any]]:
    return [{"name": name, **PLAIN, "prompt_template": template} for name in NAMES]


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"questions": ["text"]}, "questions"),
        ({"references": [{"question_id": 1, "choices": [{"turns": ["a", "b"]}]}]}, "every turn of question 111"),
        ({"prompts": [{"name": "single-v1"}]}, "prompts"),
        ({"prompts": _prompts("{other}")}, "prompts"),
        ({"prompts": _prompts("a } b")}, "prompts"),
        ({"questions": _with(category=" ")}, "questions.jsonl:2: category is empty"),
        ({"questions": _with(turns=["a", "\ud83d"])}, r"questions.jsonl:2: turns\[1\] holds half of a surrogate pair"),
        ({"questions": _with(turns=[])}, "questions.jsonl:2: turns has 0 elements; expected a list of 1 to 2 texts"),
        ({"questions": _with(turns=["a", "b", "c"])}, "questions.jsonl:2: turns has 3 elements"),
        ({"questions": _with(turns=["a", ""])}, r"questions.jsonl:2: turns\[1\] is empty"),
        ({"questions": _with(question_id="1")}, "questions.jsonl:2: question_id 1 is also in questions.jsonl:1"),
        ({"references": [{"question_id": 111, "choices": [{"turns": ["a"]}]}]}, "every turn of question 111"),
        (
            {"references": [{"question_id": 111, "choices": [{"turns": [None]}]}]},
            r"references.jsonl:1: turns\[0\] is null",
        ),
        (
            {"prompts": _prompts("{question:>3000000000}")},
            r"prompts.jsonl:1: prompt_template: \{question:>3000000000\}",
        ),
        (
            {"prompts": _prompts("{question!r}")},
            r"prompts.jsonl:1: prompt_template: \{question!r\} is more than a name",
        ),
        ({"prompts": _prompts("{question.__class__}")}, "prompts.jsonl:1: prompt_template: .*more than a name"),
        ({"prompts": _prompts("{question[0]}")}, "prompts.jsonl:1: prompt_template: .*more than a name"),
        ({"prompts": _prompts("Rate {question}")}, "prompts.jsonl:1: prompt_template shows the judge no answer"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(changed: dict[str, list[Any]], fault: str, tmp_path: Path) -> None:
    benchmark = write_files(tmp_path, **changed)
    with refused(
        "evaluation.benchmark_data", rf"^evaluation\.mt_bench\.{next(iter(changed))}: .*{fault}.*(download|FastChat)"
    ):
        benchmark.questions(NO_MATERIALS)


ANSWERS = ["It is {so}.\n\nYes.", "ünï \\ {question} 漢字", "", "[[9]]", "a\tb"]


class Theirs:
    """FastChat's own code: what it would send to a judge, and what it reads of a reply."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        conversation = official.loaded(official.code("FastChat/fastchat/conversation.py"), patch)
        lists = dict.fromkeys(("ANTHROPIC_MODEL_LIST", "OPENAI_MODEL_LIST"), ("gpt-4",))
        adapter = {"get_conversation_template": lambda _: conversation.get_conv_template("chatgpt"), **lists}
        empty: dict[str, Any] = {name: {} for name in ("openai", "anthropic", "fastchat", "fastchat__model")}
        script = official.code("FastChat/fastchat/llm_judge/common.py")
        self.code = official.loaded(script, patch, **empty, fastchat__model__model_adapter=adapter)
        patch.setattr(self.code, "chat_completion_openai", self._reply)
        folder = official.data("mt_bench_questions.jsonl").parent
        names = ("questions", "references", "judge_prompts")
        files = [str(folder / f"mt_bench_{name}.jsonl") for name in names]
        self.ours = MtBench(configured(), MtBenchOptions(questions=files[0], references=files[1], prompts=files[2]))
        self.records = self.code.load_questions(files[0], None, None)
        self.references = {each["question_id"]: each for each in self.code.load_questions(files[1], None, None)}
        self.prompts = self.code.load_judge_prompts(files[2])
        self.sent: Any = None
        self.reply = ""

    def _reply(self, model: str, conv: Any, **_: Any) -> str:
        self.sent = conv.to_openai_api_messages()
        return self.reply

    def judged(self, record: Any, kind: str, turn: int, *answers: list[str]) -> Any:
        """The rating, or the winner of two."""
        seen = record["category"] in self.code.NEED_REF_CATS
        version = "-math-v1" if seen else "-v2" if kind == "pair" else "-v1"
        prompt = self.prompts[f"{kind}{version}{'-multi-turn' if turn else ''}"]
        judge = self.code.Judge("gpt-4", prompt, ref_based=seen, multi_turn=bool(turn))
        given = [{"choices": [{"turns": texts}]} for texts in answers]
        run = self.code.run_judge_single if kind == "single" else self.code.run_judge_pair
        reference = self.references[record["question_id"]] if seen else None
        return run(record, *given, judge, reference, multi_turn=bool(turn))[0]


def test_prompts_and_ratings_are_those_of_the_official_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every question, both turns, alone and in pairs: the messages byte for byte, and what is read of a reply."""
    theirs = Theirs(monkeypatch)
    ours, questions = theirs.ours, theirs.ours.questions(NO_MATERIALS)
    assert len(questions) == len(theirs.records) == 80
    ratings, verdicts = cycle(["Rating: [[7]]", "so [3.5] [[4.5]] [[9]]", "[6]"]), cycle(["[[A]]", "x [[B]]", "[[C]]."])
    winners = {"A": 1.0, "B": 0.0, "tie": 0.5}
    for number, (question, record) in enumerate(zip(questions, theirs.records, strict=True)):
        left, right = ([ANSWERS[(number + place + turn) % 5] for turn in (0, 1)] for place in (0, 2))
        assert question.generation.temperature == theirs.code.temperature_config[record["category"]]
        for turn, request in enumerate(ours.requests(question, left)):
            theirs.reply = next(ratings)
            assert ours.parse(theirs.reply) == theirs.judged(record, "single", turn, left)
            assert theirs.sent == request.messages
        for turn, request in enumerate(ours.pair_requests(question, left, right)):
            theirs.reply = next(verdicts)
            assert verdict(theirs.reply) == winners[theirs.judged(record, "pair", turn, left, right)]
            assert theirs.sent == request.messages
