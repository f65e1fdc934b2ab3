"""The scripted generator asks what people asked about the passages that it is shown, or nothing."""

import pytest
from real_text_passages import Question
from synthetic_questions import QuestionGenerator, quotation

from gateau_dagster.features.synthesis.questions import answer_prompt, question_prompt, read_json


def question(name: str, *answers: str) -> Question:
    passage = f"The {name} is old. Its height is {answers[0]} metres, they say. Few know it."
    return Question(text=f"how high is the {name}", answers=answers, title=name, passage=passage)


TOWER, BRIDGE, LONG = question("tower", "320", "300"), question("bridge", "about 45"), question("hill", "9 " * 9)


def reply(generator: QuestionGenerator, prompt: str) -> str:
    return generator.reply({"messages": [{"content": prompt}]})


@pytest.mark.parametrize("order", [(TOWER, BRIDGE), (BRIDGE, TOWER)])
def test_a_question_joins_those_of_both_passages(order: tuple[Question, Question]) -> None:
    passages = [f"Before it. {each.passage} After it." for each in order]
    with QuestionGenerator([LONG, TOWER, BRIDGE]) as generator:
        written = read_json(reply(generator, question_prompt("two_passages", passages)))
        assert written is not None
        assert written.question == f"{order[0].text}, and {order[1].text}?"
        assert written.answer == "; ".join(each.answers[0] for each in order)
        assert [*written.evidence] == [quotation(each) for each in order]
        assert all(quote in passage for quote, passage in zip(written.evidence, passages, strict=True))
        assert reply(generator, answer_prompt(written.question, passages)) == written.answer


@pytest.mark.parametrize("other", [LONG.passage, "Nobody asked about this.", BRIDGE.passage.replace("45", "46")])
def test_without_a_question_about_a_passage_it_declines(other: str) -> None:
    with QuestionGenerator([LONG, TOWER, BRIDGE]) as generator:
        written = read_json(reply(generator, question_prompt("two_passages", [TOWER.passage, other])))
        assert written is not None and (written.question, written.answer) == ("", "")
