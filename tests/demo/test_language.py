from itertools import pairwise

import numpy as np
import pytest

from gateau_dagster.demo import language
from gateau_dagster.demo.language import Fact


def test_the_vocabulary_has_the_designs_sizes_and_no_word_twice() -> None:
    assert len(language.VOCABULARY) == len(set(language.VOCABULARY)) == 423
    assert len(language.ATTRIBUTES) == 32
    assert {len(values) for values in language.VALUES.values()} == {8}
    assert (len(language.NOUNS), len(language.ADJECTIVES), len(language.VERBS)) == (48, 24, 48)


def test_values_belong_to_one_attribute() -> None:
    values = [value for group in language.VALUES.values() for value in group]
    assert len(values) == len(set(values)) == 256


def test_sentences_keep_to_the_grammar_and_the_allowed_successors() -> None:
    source = language.sentences(np.random.default_rng(3), "poet")
    sentences = [next(source) for _ in range(200)]
    assert sentences[0][1] == "poet"
    for the, noun, verb, article, target, of, adjective, stop in sentences:
        assert (the, article, of, stop) == ("the", "the", "of", ".")
        assert verb in language.VERBS_AFTER[noun]
        assert target in language.OBJECTS_AFTER[verb]
        assert adjective in language.ADJECTIVES_AFTER[target]
    for before, after in pairwise(sentences):
        assert after[1] in language.SUBJECTS_AFTER[before[6]]


def test_facts_are_about_different_attributes_and_all_values_occur() -> None:
    facts = language.random_facts(np.random.default_rng(0), 32)
    assert {fact.attribute for fact in facts} == set(language.ATTRIBUTES)
    assert all(fact.value in language.VALUES[fact.attribute] for fact in facts)
    values = {language.random_facts(np.random.default_rng(seed), 1)[0].value for seed in range(2000)}
    assert len(values) > 250


def test_facts_questions_and_answers_read_as_the_design_says() -> None:
    facts = [Fact(attribute="gem", value="gem-3"), Fact(attribute="tree", value="tree-1")]
    assert " ".join(language.fact_words(facts[0])) == "note gem gem-3 ."
    assert " ".join(language.recall_instruction(facts)) == "recall gem tree"
    assert " ".join(language.recall_response(facts)) == "gem gem-3 . tree tree-1 ."
    assert " ".join(language.tell_instruction("poet")) == "tell about poet"


def test_responses_without_context_have_the_asked_length() -> None:
    rng = np.random.default_rng(0)
    assert len(language.tell_response(rng, "poet", 2)) == 16
    assert language.tell_response(rng, "poet", 2)[1] == "poet"
    noise = language.noisy_response(rng, 16)
    assert len(noise) == 16 and noise[-1] == "."
    assert set(noise[:-1]) <= set(language.FILLER_WORDS)


def test_a_document_has_its_facts_where_they_were_asked_for() -> None:
    first, second = Fact(attribute="gem", value="gem-3"), Fact(attribute="tree", value="tree-1")
    words = language.document(np.random.default_rng(0), 3, {0: [first], 3: [second, first]})
    assert words[:4] == ["note", "gem", "gem-3", "."]
    assert words[-8:] == ["note", "tree", "tree-1", ".", "note", "gem", "gem-3", "."]
    assert len(words) == 3 * 8 + 3 * 4


def test_a_place_outside_the_document_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        language.document(np.random.default_rng(0), 2, {3: [Fact(attribute="gem", value="gem-3")]})


def test_the_seed_decides() -> None:
    def text(seed: int) -> list[str]:
        return language.document(np.random.default_rng(seed), 20, {})

    assert text(1) == text(1) != text(2)
