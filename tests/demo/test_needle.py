from gateau_dagster.demo.language import Fact, fact_words, recall_instruction, recall_response
from gateau_dagster.demo.needle import NEEDLES
from gateau_dagster.evaluation.needle import NeedleOptions


def test_the_templates_are_the_languages_own_sentences() -> None:
    options = NeedleOptions.model_validate(NEEDLES)
    assert options.pairs is not None and len(options.pairs) == 32
    for pair in options.pairs:
        for value in pair.values:
            fact = Fact(attribute=pair.key, value=value)
            names = {"key": pair.key, "value": value}
            assert options.fact.format(**names).split() == fact_words(fact)
            assert options.question.format(**names).split() == recall_instruction([fact])
            assert options.answer.format(**names).split() == recall_response([fact])
