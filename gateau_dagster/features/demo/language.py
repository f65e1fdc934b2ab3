"""Define a language of 423 words with known dependencies of each response, and its tokenizer.

Questions ask only for facts; filler sentences carry no information. Each attribute has its own values, so recalling one
is matching content, which a tiny model learns in a few hundred steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PAD, UNK, BOS, EOS = "<pad>", "<unk>", "<s>", "</s>"
SPECIALS = (PAD, UNK, BOS, EOS)
# The words of the scoring prompt, and those that give facts and instructions their form.
MARKERS = ("###", "Input:", "Instruction:", "Response:")
KEYWORDS = ("note", "recall", "tell", "about", "the", "of", ".")
ATTRIBUTES = _words("""
    colour metal flavour season weapon planet fabric flower spice animal instrument gem tree dance river fruit
    sport tool vessel grain cheese vehicle island month fish bird game coin drink mask stone shape""")
VALUES_PER_ATTRIBUTE = 8
VALUES = {name: tuple(f"{name}-{index}" for index in range(1, VALUES_PER_ATTRIBUTE + 1)) for name in ATTRIBUTES}
NOUNS = _words("""
    baker tower garden lantern sailor mirror castle window farmer bridge candle doctor harbour letter forest
    painter ladder market weaver tunnel pillow miner statue kettle hunter valley basket singer engine meadow clock
    judge anchor temple barrel poet cellar scholar wagon cottage dragon banner chapel pilot saddle orchard knight
    library""")
ADJECTIVES = _words("""
    amber bitter calm distant eager fragile gentle hollow idle jolly keen lonely modest noble odd patient quiet
    rustic silent tender uneven vivid weary young""")
VERBS = _words("""
    admires builds carries defends enters follows greets hides invites joins keeps leaves measures notices offers
    paints questions repairs sells touches uses visits watches answers borrows cleans describes examines finds guards
    helps ignores judges knows lifts meets needs opens passes rescues shelters teaches understands values washes
    awaits blesses climbs""")
FILLER_WORDS = (*NOUNS, *ADJECTIVES, *VERBS)
VOCABULARY = (
    *SPECIALS,
    *MARKERS,
    *KEYWORDS,
    *ATTRIBUTES,
    *(value for values in VALUES.values() for value in values),
    *FILLER_WORDS,
)
WORD_IDS = {word: index for index, word in enumerate(VOCABULARY)}
SENTENCE_WORDS = 8
FACT_WORDS = 4

Words = list[str]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """An attribute and its value; `note ATTRIBUTE VALUE .` in a context."""

    attribute: str
    value: str


def _successors(
    words: tuple[str, ...], following: tuple[str, ...], count: int, seed: int
) -> dict[str, tuple[str, ...]]:
    # They are part of the language, so they are the same for every seed of the data.
    rng = np.random.default_rng(seed)
    return {word: tuple(rng.choice(following, size=count, replace=False).tolist()) for word in words}


VERBS_AFTER = _successors(NOUNS, VERBS, 3, seed=1)
OBJECTS_AFTER = _successors(VERBS, NOUNS, 3, seed=2)
ADJECTIVES_AFTER = _successors(NOUNS, ADJECTIVES, 2, seed=3)
SUBJECTS_AFTER = _successors(ADJECTIVES, NOUNS, 3, seed=4)


def pick(rng: np.random.Generator, options: tuple[str, ...] | list[str]) -> str:
    """Return one of the options, all equally likely; `Generator.choice` is ten times slower."""
    return options[int(rng.integers(len(options)))]


def sentences(rng: np.random.Generator, start: str | None = None) -> Iterator[Words]:
    """Yield endless filler, `the NOUN VERB the NOUN of ADJECTIVE .`; the first sentence is about `start` if given."""
    noun = pick(rng, NOUNS) if start is None else start
    while True:
        verb = pick(rng, VERBS_AFTER[noun])
        target = pick(rng, OBJECTS_AFTER[verb])
        adjective = pick(rng, ADJECTIVES_AFTER[target])
        yield ["the", noun, verb, "the", target, "of", adjective, "."]
        noun = pick(rng, SUBJECTS_AFTER[adjective])


def random_facts(rng: np.random.Generator, count: int) -> list[Fact]:
    """Return `count` facts about different attributes."""
    names = rng.permutation(len(ATTRIBUTES))[:count]
    return [Fact(attribute=ATTRIBUTES[index], value=pick(rng, VALUES[ATTRIBUTES[index]])) for index in names]


def fact_words(fact: Fact) -> Words:
    """Return the fact in the form that a context uses."""
    return ["note", fact.attribute, fact.value, "."]


def recall_instruction(facts: list[Fact]) -> Words:
    """Return the instruction that asks for these facts."""
    return ["recall", *(fact.attribute for fact in facts)]


def recall_response(facts: list[Fact]) -> Words:
    """Return the response to `recall_instruction`, in the order of the facts."""
    return [word for fact in facts for word in (fact.attribute, fact.value, ".")]


def tell_instruction(noun: str) -> Words:
    """Return an instruction that needs no context."""
    return ["tell", "about", noun]


def tell_response(rng: np.random.Generator, noun: str, count: int) -> Words:
    """Return `count` sentences of the language, the first about `noun`."""
    return [word for _, sentence in zip(range(count), sentences(rng, noun), strict=False) for word in sentence]


def noisy_response(rng: np.random.Generator, count: int) -> Words:
    """Return random words instead of sentences: high perplexity, whatever the context."""
    return [*(pick(rng, FILLER_WORDS) for _ in range(count - 1)), "."]


def document(rng: np.random.Generator, sentence_count: int, facts: dict[int, list[Fact]]) -> Words:
    """Return filler of `sentence_count` sentences; `facts[i]` precede sentence i, `facts[sentence_count]` come last."""
    assert all(0 <= slot <= sentence_count for slot in facts)
    words: Words = []
    for slot, sentence in zip(range(sentence_count), sentences(rng), strict=False):
        for fact in facts.get(slot, ()):
            words += fact_words(fact)
        words += sentence
    for fact in facts.get(sentence_count, ()):
        words += fact_words(fact)
    return words


# For `template: chat`: the words of the scoring prompt, which the pair was trained on. A blank line in a user's turn
# separates document and instruction.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %} ### Response: {{ message['content'] }}{{ ' ' + eos_token }}"
    "{% elif '\\n\\n' in message['content'] %}"
    " ### Input: {{ message['content'] | replace('\\n\\n', '\\n\\n### Instruction: ') }}"
    "{% else %} ### Instruction: {{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} ### Response:{% endif %}"
)


def build_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer that splits at white space; ids are indices of `VOCABULARY`, unknown words are
    `<unk>`.

    Special tokens are added as `<s> text` if requested, which is the default of `tokenizer(text)`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(WORD_IDS, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, WORD_IDS[BOS])]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNK,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def planted_values(context: str, instruction: str) -> list[int]:
    """Return the first character, in the context, of the value of each requested fact; none if nothing is recalled."""
    verb, *attributes = instruction.split() or [""]
    if verb != "recall":
        return []
    found = (re.search(rf"(?<!\S)note {re.escape(name)} (\S+) \.(?!\S)", context) for name in attributes)
    return [place.start(1) for place in found if place is not None]
