"""Batches against one prompt at a time, and both against a loop over full passes."""

import math
import random
from collections.abc import Sequence

import pytest
import torch

from gateau_dagster.data.sample import Reject
from gateau_dagster.features.evaluation.benchmark import Generation
from gateau_dagster.features.evaluation.generation import in_process
from gateau_dagster.features.evaluation.generation.answering import Answer, AskedTurn, Outcome
from gateau_dagster.features.evaluation.generation.in_process import (
    Decoded,
    GenerationRequest,
    InProcess,
    decode,
    pads_left,
)
from gateau_dagster.models.model_config import learned_positions
from tests.features.evaluation.engines import prompts, question, ragged, tiny
from tests.kit.tiny_models import text, tokenizer

ENDS = frozenset([1])
KINDS = ["llama", "gemma3_text", "gpt2", pytest.param("mamba", marks=pytest.mark.long)]


def wanted(count: int = 5, **generation: object) -> list[GenerationRequest]:
    """Ragged prompts with limits of their own."""
    return [
        GenerationRequest(
            ids=tokenizer().encode(text(n, 2 + 40 * (n % 3))),
            generation=Generation(**{"max_new_tokens": 6 + 3 * (n % 3), "seed": 3, **generation}),  # pyright: ignore
            draws=f"3:q{n}:0",
        )
        for n in range(count)
    ]


def next_chances(kind: str, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        return tiny(kind).model(input_ids=torch.tensor([list(ids)])).logits[0, -1].double()


def slow(kind: str, one: GenerationRequest) -> Decoded:
    """The most likely token, one full pass each."""
    said: list[int] = []
    while len(said) < one.generation.max_new_tokens and said[-1:] != [1]:
        said.append(int(next_chances(kind, [*one.ids, *said]).argmax()))
    ended = said[-1] == 1
    return Decoded(text=str(tokenizer().decode(said, skip_special_tokens=True)), tokens=len(said), ended=ended)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_says_what_each_says_alone(kind: str) -> None:
    asked = wanted()
    assert pads_left(tiny(kind)) or kind == "mamba"
    alone = [decode(tiny(kind), [one], ENDS)[0] for one in asked]
    assert alone == [slow(kind, one) for one in asked]
    if pads_left(tiny(kind)):
        assert decode(tiny(kind), asked, ENDS) == alone


def test_a_sampled_answer_is_the_same_in_any_company() -> None:
    asked = wanted(temperature=1.5, top_p=0.9)
    together = decode(tiny(), asked, ENDS)
    assert together == [decode(tiny(), [one], ENDS)[0] for one in asked]
    assert together == decode(tiny(), asked, ENDS)
    mixed = [wanted()[0], asked[1]]
    assert decode(tiny(), mixed, ENDS) == [decode(tiny(), [wanted()[0]], ENDS)[0], together[1]]
    other = [GenerationRequest(ids=one.ids, generation=one.generation, draws=f"4{one.draws}") for one in asked]
    assert decode(tiny(), other, ENDS) != together


def test_a_stop_ends_a_row_before_it_and_no_other() -> None:
    one, other = wanted(2, max_new_tokens=12)
    said = [decode(tiny(), [each], ENDS)[0] for each in (one, other)]
    stop = said[0].text[3:6]
    stopped = GenerationRequest(ids=one.ids, generation=Generation(max_new_tokens=12, stop=("never", stop)), draws="")
    (first, second) = decode(tiny(), [stopped, other], ENDS)
    assert first.text == said[0].text[: said[0].text.index(stop)] and first.ended
    assert first.tokens < said[0].tokens
    assert second == said[1]


def test_no_default_of_a_checkpoint_counts() -> None:
    model, asked = tiny().model, wanted(2)
    plain, own = decode(tiny(), asked, ENDS), model.generation_config
    assert own is not None
    before = own.to_dict()
    try:
        own.update(do_sample=True, temperature=5.0, repetition_penalty=3.0, max_length=3, top_k=2)
        assert decode(tiny(), asked, ENDS) == plain
        assert model.generation_config is own
        own.eos_token_id = [int(next_chances("llama", asked[0].ids).argmax())]
        assert decode(tiny(), asked, ENDS)[0].ended
    finally:
        own.update(**before)


@pytest.mark.parametrize(("temperature", "top_p"), [(1.3, 1.0), (0.7, 1.0), (2.0, 0.8), (1.0, 0.2)])
def test_a_draw_is_looked_up_as_written_down(temperature: float, top_p: float) -> None:
    """One token: the uniform number's place among the cumulated chances, of the tokens before `top_p` is reached."""
    ids = tokenizer().encode("the ledger")
    chances = torch.softmax(next_chances("llama", ids) / temperature, -1).tolist()
    order, kept = sorted(range(len(chances)), key=lambda each: (-chances[each], each)), list[int]()
    while math.fsum(chances[each] for each in kept) < top_p and len(kept) < len(order):
        kept.append(order[len(kept)])
    generation = Generation(max_new_tokens=1, temperature=temperature, top_p=top_p)
    for draws in map(str, range(20)):
        left = random.Random(draws).random() * math.fsum(chances[each] for each in kept)
        wanted = next(
            (each for place, each in enumerate(kept) if sum(map(chances.__getitem__, kept[: place + 1])) > left)
        )
        one = GenerationRequest(ids=ids, generation=generation, draws=draws)
        said = decode(tiny(), [one], frozenset())[0].text
        assert said == tokenizer().decode([wanted], skip_special_tokens=True)


# The engine of this process: batches, memory that does not suffice, questions that cannot be shown.


def asked_of(count: int) -> list[AskedTurn]:
    return [AskedTurn(question=each) for each in ragged(count)]


def engine(batch_tokens: int = 400, kind: str = "llama") -> InProcess:
    return InProcess(tiny(kind), prompts(), batch_tokens=batch_tokens)


def everything(groups: list[Sequence[Outcome]]) -> dict[str, tuple[str, str, int]]:
    return {
        each.question_id: (each.answer, each.finish_reason, each.prompt_tokens)
        for group in groups
        for each in group
        if isinstance(each, Answer)
    }


def names(groups: list[Sequence[Outcome]]) -> list[list[str]]:
    return [[each.question_id for each in group if isinstance(each, Answer)] for group in groups]


def test_batches_of_the_longest_first_answer_as_one_at_a_time() -> None:
    asked = asked_of(9)
    every = {each.question.question_id for each in asked}
    groups, alone = list(engine().answers(asked, every)), list(engine(1).answers(asked, every))
    assert len(groups) < len(alone) == 9
    assert everything(groups) == everything(alone) and everything(groups).keys() == every
    limits = {each.question.question_id: each.question.generation.max_new_tokens for each in asked}
    order = [limits[name] for group in names(groups) for name in group]
    assert order == sorted(order, reverse=True)
    first = groups[0][0]
    assert isinstance(first, Answer)
    one = next(each for each in asked if each.question.question_id == first.question_id)
    shown = prompts().shown(one)
    assert (first.prompt, first.prompt_tokens, first.turn) == (shown.text, len(shown.ids), 0)
    assert first.digest == one.question.digest and first.seconds > 0


def test_it_says_what_is_at_work_while_a_batch_is_answered() -> None:
    notes: list[str] = []
    asked = asked_of(3)
    (group,) = engine(2000).answers(asked, {each.question.question_id for each in asked}, notes.append)
    answers = [each for each in group if isinstance(each, Answer)]
    assert len(notes) > 4 and notes[0] == "question 1 of 3 into tokens"
    assert notes[3] == f"3 questions side by side: reading {sum(each.prompt_tokens for each in answers)} tokens"
    longest = max(each.answer_tokens for each in answers)
    assert notes[4:] == [f"3 questions side by side: token {said} of at most 7" for said in range(1, longest + 1)]


def test_what_is_answered_already_changes_no_batch() -> None:
    asked = asked_of(9)
    whole = names(list(engine().answers(asked, {each.question.question_id for each in asked})))
    rest = {name for group in whole[1:] for name in group}
    assert names(list(engine().answers(asked, rest))) == whole[1:]


def test_memory_that_does_not_suffice_halves_the_batch_and_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, sizes = in_process.decode, []

    def small(
        loaded: object, wanted: Sequence[in_process.GenerationRequest], endings: frozenset[int], said: object
    ) -> list[in_process.Decoded]:
        sizes.append(len(wanted))
        if len(wanted) > 2 or len(wanted[0].ids) > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return honest(tiny(), wanted, endings)

    monkeypatch.setattr(in_process, "decode", small)
    asked = [*asked_of(6), AskedTurn(question=question("huge", text(1, 140)))]
    every = {each.question.question_id for each in asked}
    groups = list(engine(1500).answers(asked, every))
    assert everything(groups).keys() == every - {"huge"}
    (reject,) = [each for group in groups for each in group if isinstance(each, Reject)]
    assert reject.sample_id == "huge" and reject.short_of_memory and "out of memory on a prompt of" in reject.reason
    assert sizes[0] > 2 and max(sizes[-3:]) <= 2

    def broken(*_: object) -> list[in_process.Decoded]:
        raise RuntimeError("mat1 and mat2")

    monkeypatch.setattr(in_process, "decode", broken)
    with pytest.raises(RuntimeError, match="mat1"):
        list(engine().answers(asked, every))


def test_a_question_that_cannot_be_shown_is_rejected_with_its_reason() -> None:
    asked = [AskedTurn(question=question("half", "\ud800")), AskedTurn(question=question("q"))]
    groups = list(engine().answers(asked, {"half", "q"}))
    (reject,) = groups[0]
    assert isinstance(reject, Reject) and reject.sample_id == "half" and "tokenised" in reject.reason
    assert everything(groups).keys() == {"q"}
    assert everything(list(engine().answers(asked, {"q"}))).keys() == {"q"}


def test_no_answer_is_asked_for_beyond_the_learned_positions() -> None:
    most = learned_positions(tiny("gpt2").model.config)
    assert most is not None
    long = question("long", text(3, 1500))
    wide = InProcess(tiny("gpt2"), prompts(max_length=9999), batch_tokens=400)
    assert len(prompts(max_length=9999).shown(AskedTurn(question=long)).ids) > most
    ((reject,),) = wide.answers([AskedTurn(question=long)], {"long"})
    assert isinstance(reject, Reject) and "positions" in reject.reason


def test_a_model_that_cannot_be_padded_answers_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "pads_left", lambda loaded: False)
    asked = asked_of(4)
    groups = list(engine().answers(asked, {each.question.question_id for each in asked}))
    assert [len(group) for group in groups] == [1] * 4


def test_the_second_turn_reads_the_first_answer() -> None:
    two = question("q", "What is a ledger?", "And an engine?")
    ((first,),) = engine().answers([AskedTurn(question=two)], {"q"})
    assert isinstance(first, Answer)
    ((second,),) = engine().answers([AskedTurn(question=two, answers=(first.answer,))], {"q"})
    assert isinstance(second, Answer) and second.turn == 1
    assert f"{first.answer}</s>" in second.prompt and second.prompt.endswith("And an engine?\n\n### Response:")
    asked = AskedTurn(question=two, answers=(first.answer,))
    assert second.prompt_tokens == len(prompts().shown(asked).ids)
