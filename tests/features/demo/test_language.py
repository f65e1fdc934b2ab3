"""The synthetic language keeps to its grammar, and its tokenizer knows every word."""

from itertools import pairwise

import numpy as np
import pytest

from gateau_dagster.features.demo import language
from gateau_dagster.features.demo.language import VALUES, VOCABULARY, Fact, build_tokenizer, planted_values
from gateau_dagster.features.demo.prepare import demo_samples, demo_short_chat


def test_the_vocabulary_has_the_designs_sizes_and_no_word_twice() -> None:
    assert len(language.VOCABULARY) == len(set(language.VOCABULARY)) == 423
    assert len(language.ATTRIBUTES) == 32
    assert {len(values) for values in language.VALUES.values()} == {8}
    assert (len(language.NOUNS), len(language.ADJECTIVES), len(language.VERBS)) == (48, 24, 48)
    values = [value for group in language.VALUES.values() for value in group]
    assert len(values) == len(set(values)) == 256, "each belongs to one attribute"


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
    with pytest.raises(AssertionError):
        language.document(np.random.default_rng(0), 2, {3: [first]})
    drawn = [language.document(np.random.default_rng(seed), 20, {}) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_ids_are_places_in_the_vocabulary() -> None:
    tokenizer = build_tokenizer(256)
    ids = tokenizer("note gem gem-3 .", add_special_tokens=False)["input_ids"]
    assert [VOCABULARY[index] for index in ids] == ["note", "gem", "gem-3", "."]
    assert len(tokenizer) == len(VOCABULARY) == 423
    assert tokenizer("note")["input_ids"][0] == tokenizer.bos_token_id
    assert tokenizer("zebra", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]


def test_every_word_of_the_demo_and_of_the_scoring_prompt_is_known() -> None:
    tokenizer = build_tokenizer(256)
    texts = ["### Input: ", "\n\n### Instruction: ", "\n\n### Response: "]
    texts += [sample[part] for sample in demo_samples(50, 0) for part in ("context", "instruction", "response")]
    texts += [turn["value"] for chat in demo_short_chat(50, 0) for turn in chat["conversations"]]
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == " ".join(text.split())


def test_parts_give_the_same_ids_alone_and_together() -> None:
    tokenizer = build_tokenizer(256)
    parts = ["### Input: ", "note gem gem-3 .", "\n\n### Instruction: recall gem\n\n### Response: ", "gem gem-3 ."]
    alone = [index for part in parts for index in tokenizer(part, add_special_tokens=False)["input_ids"]]
    assert alone == tokenizer("".join(parts), add_special_tokens=False)["input_ids"]


def test_the_chat_template_writes_the_scoring_prompt() -> None:
    tokenizer = build_tokenizer(256)
    turns = [
        {"role": "user", "content": "note gem gem-3 .\n\nrecall gem"},
        {"role": "assistant", "content": "gem gem-3 ."},
        {"role": "user", "content": "tell about poet"},
    ]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    wanted = (
        "<s> ### Input: note gem gem-3 . ### Instruction: recall gem ### Response: gem gem-3 . </s> "
        "### Instruction: tell about poet ### Response:"
    )
    assert " ".join(text.split()) == wanted


def test_each_asked_value_is_found_where_it_stands() -> None:
    recalled = 0
    for sample in demo_samples(50, 3):
        words, asked = sample["context"].split(), sample["instruction"].split()
        places, expected = [len(" ".join([*words[:index], ""])) for index in range(len(words))], []
        for name in asked[1:] if asked[0] == "recall" else []:
            value = next(index for index, word in enumerate(words) if word in VALUES[name])
            assert words[value - 2 : value] == ["note", name]
            expected.append(places[value])
        assert planted_values(sample["context"], sample["instruction"]) == expected
        recalled += bool(expected)
    assert recalled == 30


def test_other_texts_have_none() -> None:
    assert planted_values("note metal metal-3 .", "tell about metal") == []
    assert planted_values("note metal metal-3 .", "") == []
    assert planted_values("footnote metal metal-3 . note metals metal-1 .", "recall metal") == []
