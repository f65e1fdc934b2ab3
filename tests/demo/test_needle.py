from gateau_dagster.config import NeedleConfig
from gateau_dagster.demo.language import Fact, fact_words, recall_instruction, recall_response
from gateau_dagster.demo.needle import ANSWER_TEMPLATE, FACT_TEMPLATE, QUESTION_TEMPLATE, needle_pairs


def test_the_needle_section_takes_the_pairs_and_templates() -> None:
    config = NeedleConfig.model_validate(
        {"fact": FACT_TEMPLATE, "question": QUESTION_TEMPLATE, "answer": ANSWER_TEMPLATE, "pairs": needle_pairs()}
    )
    assert config.pairs is not None and len(config.pairs) == 32


def test_the_templates_are_the_languages_own_sentences() -> None:
    for pair in needle_pairs():
        for value in pair["values"]:
            fact = Fact(attribute=pair["key"], value=value)
            names = {"key": pair["key"], "value": value}
            assert FACT_TEMPLATE.format(**names).split() == fact_words(fact)
            assert QUESTION_TEMPLATE.format(**names).split() == recall_instruction([fact])
            assert ANSWER_TEMPLATE.format(**names).split() == recall_response([fact])
