"""What is planted in the data is found, as a slow twin finds it, and nothing else is."""

import random
from collections.abc import Sequence

import polars as pl
import pytest

from gateau_dagster.evaluation.benchmark import Generation, Question
from gateau_dagster.evaluation.contamination import NEAR, OVERLAPS, PROMPT_QUESTIONS, AskedTexts, overlaps
from gateau_dagster.tables import schema
from tests.evaluation.contamination.slow import drawn_words as words
from tests.evaluation.contamination.slow import slow_ngrams, slow_questions_ngrams

CHINESE = "敏捷的棕色狐狸跳过了懒狗然后它在树下休息直到太阳下山才回家"


def question(number: int, *turns: str, references: Sequence[str] = (), group: str = "") -> Question:
    """In a group of its own, unless a group is given."""
    return Question(
        question_id=f"q{number}",
        group=group or str(number),
        turns=turns,
        generation=Generation(max_new_tokens=8),
        references=tuple(references),
    )


def found_in(texts: Sequence[Sequence[str]], *questions: Question) -> dict[tuple[str, str], tuple[int, float, float]]:
    table = overlaps(((f"s{number}", parts) for number, parts in enumerate(texts)), AskedTexts.of(questions))
    assert table.schema == schema(OVERLAPS) and table.equals(table.sort("sample_id", "question_id"))
    return {(sample, asked): (*rest,) for sample, asked, *rest in table.iter_rows()}


def spaced(text: str) -> str:
    return "\n\n".join(text.split()).replace("\n\n", " \t", 5)


CHANGES = {
    "verbatim": str,
    "other case": str.upper,
    "other white space": spaced,
    "other punctuation": lambda text: "– ".join(f"«{word}»," for word in text.split()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("place", range(3), ids=["context", "instruction", "response"])
def test_planted_text_is_found_whatever_its_form(change, place: int) -> None:
    passage = words(1, 40)
    sample = [words(10 + part, 200) for part in range(3)]
    sample[place] = f"{sample[place][:501]} {change(passage)} {sample[place][501:]}"
    clean = [words(20 + part, 200) for part in range(3)]
    asked = question(7, f"{words(30, 60)} {passage} {words(31, 60)}", references=[words(32, 2)])
    found = found_in([clean, sample], asked, question(8, words(40, 300)))
    assert [*found] == [("s1", "q7")]
    shared, share, similarity = found["s1", "q7"]
    assert (shared, share) == (40 - 12, 28 / (160 - 12)) and 0 < similarity < NEAR


def test_planted_chinese_is_found_by_its_characters() -> None:
    found = found_in([["前言。" + CHINESE[2:24] + "。后记", "问", "答"]], question(1, f"读：{CHINESE}？"))
    assert found["s0", "q1"][0] == 22 - 12
    assert found_in([["前言。" + CHINESE[2:14] + "。后记", "问", "答"]], question(1, f"读：{CHINESE}？")) == {}


def test_disjoint_text_is_not_found() -> None:
    texts = [[words(seed, 400), words(seed + 50, 12), words(seed + 100, 30)] for seed in range(6)]
    questions = [question(seed, words(200 + seed, 400), words(300 + seed, 10)) for seed in range(6)]
    assert found_in(texts, *questions) == {}


def test_twelve_words_are_not_enough_and_none_reach_over_the_end_of_a_text() -> None:
    passage = words(1, 13).split()
    asked = question(1, f"{words(2, 30)} {' '.join(passage)} {words(3, 30)}")
    around = words(40, 20)
    assert found_in([[f"{around} {' '.join(passage[1:])} {around}"]], asked) == {}
    assert found_in([[f"{around} {' '.join(passage[:7])}", f"{' '.join(passage[7:])} {around}"]], asked) == {}
    assert found_in([[f"{around} {' '.join(passage)} {around}"]], asked)["s0", "q1"][0] == 1


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_many_questions_against_the_twin(seed: int) -> None:
    drawn = random.Random(seed)
    pool = [words(number, drawn.randint(2, 40)) for number in range(12)]

    def text() -> str:
        return " ".join(drawn.choices(pool, k=2)) + f" {drawn.random()}"

    questions = [question(number, text(), drawn.choice(pool), references=[text()]) for number in range(6)]
    samples = [[text(), text(), drawn.choice(pool)] for _ in range(6)]
    found = found_in(samples, *questions)
    of_questions = {each.question_id: slow_questions_ngrams([*each.turns, *each.references]) for each in questions}
    of_samples = [set().union(*(slow_ngrams(sample, length) for length in range(8, 14))) for sample in samples]
    for place, grams in enumerate(of_samples):
        for name, asked in of_questions.items():
            shared, share, similarity = found.pop((f"s{place}", name), (0, 0.0, NEAR))
            assert (shared, share) == (len(asked & grams), len(asked & grams) / max(1, len(asked)))
            assert shared or similarity >= NEAR
    assert not found


@pytest.mark.parametrize(("length", "is_found"), [(7, False), (8, True), (12, True)])
@pytest.mark.parametrize("reference", [False, True])
def test_a_short_question_or_answer_is_one_ngram(length: int, is_found: bool, reference: bool) -> None:
    short, long = words(1, length), words(2, 50)
    asked = question(1, long, references=[short]) if reference else question(1, long, short)
    found = found_in([[f"{words(3, 30)} {short} {words(4, 30)}"]], asked)
    assert bool(found) == is_found
    if is_found:
        assert found["s0", "q1"][:2] == (1, 1 / (50 - 12 + 1))


def test_the_prompt_of_a_benchmark_is_none_of_its_questions() -> None:
    prompt, answer = words(1, 30), words(2, 20)
    several = [
        question(number, f"{prompt} {words(10 + number, 40)}", references=[answer] if number else [], group="a")
        for number in range(PROMPT_QUESTIONS)
    ]
    sample = [[f"{words(3, 30)} {prompt} {words(4, 30)}"]]
    assert found_in(sample, *several) == {}
    assert len(found_in(sample, *several[1:])) == PROMPT_QUESTIONS - 1, "few questions may have a document in common"
    copied = f"{words(3, 30)} {words(15, 40)} {words(4, 30)}"
    assert [*found_in([[copied]], *several)] == [("s0", "q5")]
    assert len(found_in([[f"{words(3, 30)} {answer} {words(4, 30)}"]], *several)) == PROMPT_QUESTIONS - 1
    cells = [question(number, f"{prompt} {words(10 + number, 40)}") for number in range(PROMPT_QUESTIONS)]
    assert found_in(sample, *cells) == {}, "in whatever groups they are"
    half = [*several[: PROMPT_QUESTIONS // 2], *(question(30 + n, words(60 + n, 40), group="a") for n in range(10))]
    assert len(found_in(sample, *half)) == PROMPT_QUESTIONS // 2


def test_a_near_duplicate_without_a_common_ngram_is_found() -> None:
    text = words(1, 600).split()
    changed = [f"other{place}" if place % 12 == 0 else word for place, word in enumerate(text)]
    found = found_in([[" ".join(changed)], [words(2, 600)]], question(1, " ".join(text)), question(2, words(3, 600)))
    assert [*found] == [("s0", "q1")]
    shared, share, similarity = found["s0", "q1"]
    assert shared == share == 0 and similarity == pytest.approx(0.6, abs=0.1)


def test_nothing_has_nothing_in_common() -> None:
    assert found_in([["a text", "", ""]]) == {}
    assert found_in([], question(1, words(1, 50))) == {}
    assert found_in([["", "", ""]], question(1, "", references=[""]), question(2, words(1, 50))) == {}
    assert AskedTexts.of([]).prompt_ngrams == 0


def test_the_rows_are_those_of_the_samples_in_whatever_order() -> None:
    asked = AskedTexts.of([question(1, words(1, 50))])
    samples = [(f"s{number}", [words(number, 50)]) for number in (1, 2, 3)]
    assert overlaps(samples, asked).equals(overlaps(samples[::-1], asked))
    assert pl.concat([overlaps([each], asked) for each in samples]).equals(overlaps(samples, asked))
