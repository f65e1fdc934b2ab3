import numpy as np
import pytest

from gateau_dagster.demo.language import ATTRIBUTES, VALUES, VOCABULARY
from gateau_dagster.demo.pair import LONG_LENGTHS, LONG_WINDOW, SHORT_STAGES, SHORT_WINDOW
from gateau_dagster.demo.rows import ANSWER_WEIGHT, LanguageRow, Stage, batches, training_row

ANSWERS = {*ATTRIBUTES, *(value for values in VALUES.values() for value in values)}


def rows(count: int) -> list[LanguageRow]:
    return [training_row(np.random.default_rng(seed), length=400, context=200, fact_count=8) for seed in range(count)]


def split(row: LanguageRow) -> tuple[list[str], list[tuple[list[str], list[str]]]]:
    """Context, and the instructions and responses after it; the last, which may be cut, is left out."""
    text = " ".join(row.words)
    assert text.startswith("<s> ### Input: ")
    context, *queries = text.removeprefix("<s> ### Input: ").split(" ### Instruction: ")
    pairs = [query.split(" ### Response: ") for query in queries[:-1]]
    return context.split(), [(asked.split(), answered.split()) for asked, answered in pairs]


def test_rows_have_the_form_of_the_scoring_prompt_and_the_asked_length() -> None:
    for row in rows(20):
        context, queries = split(row)
        assert len(row.words) == len(row.weights) == 400
        assert context.count("note") == 8 and 190 <= len(context) <= 200
        assert queries and all(asked[0] in ("recall", "tell") for asked, _ in queries)


def test_recalls_are_answered_by_the_context_but_for_a_few_that_cannot_be() -> None:
    known = absent = 0
    for row in rows(100):
        context, queries = split(row)
        facts = {context[i + 1]: context[i + 2] for i, word in enumerate(context) if word == "note"}
        for asked, answered in queries:
            if asked[0] != "recall":
                continue
            assert asked[1:] == answered[::3] and set(answered[2::3]) == {"."}
            for name, value in zip(answered[::3], answered[1::3], strict=True):
                known += facts.get(name) == value
                absent += name not in facts
                assert name not in facts or facts[name] == value
    assert absent / (known + absent) == pytest.approx(0.025, abs=0.015)


def test_answers_weigh_most_and_the_start_nothing() -> None:
    for row in rows(5):
        context_end = row.words.index("Instruction:")
        assert row.weights[0] == 0.0
        for index in range(context_end + 1, len(row.words)):
            in_response = "Response:" in row.words[context_end:index] and row.weights[index] not in (0.03,)
            if in_response and row.words[index] in ANSWERS:
                assert row.weights[index] == ANSWER_WEIGHT
        assert max(row.weights[:context_end]) < ANSWER_WEIGHT


def test_batches_cycle_through_the_shapes_and_hold_the_rows_ids() -> None:
    stage = Stage(name="small", steps=3, shapes=((2, 64), (1, 128)), facts=(2, 4), filler=True)
    made = list(batches(stage, np.random.default_rng(0)))
    assert [batch.ids.shape for batch in made] == [(2, 64), (1, 128), (2, 64)]
    assert all(batch.weights.shape == batch.ids.shape for batch in made)
    assert (made[0].ids.dtype, made[0].weights.dtype) == (np.int64, np.float32)
    assert [VOCABULARY[index] for index in made[0].ids[0, :3]] == ["<s>", "###", "Input:"]
    again = list(batches(stage, np.random.default_rng(0)))
    assert all((one.ids == two.ids).all() for one, two in zip(made, again, strict=True))


def test_no_stage_exceeds_its_models_window() -> None:
    assert max(length for stage in SHORT_STAGES for _, length in stage.shapes) == SHORT_WINDOW
    assert max(LONG_LENGTHS) == LONG_WINDOW


def test_a_stage_without_filler_has_facts_only() -> None:
    stage = Stage(name="facts", steps=1, shapes=((4, 96),), facts=(8, 8), filler=False)
    (batch,) = batches(stage, np.random.default_rng(0))
    for ids in batch.ids:
        words = [VOCABULARY[index] for index in ids]
        assert words[3:35:4] == ["note"] * 8 and words[35:37] == ["###", "Instruction:"]
