"""Batches against one prompt at a time, and both against a loop over full passes."""

import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch

from gateau_dagster.evaluation.benchmark import Generation
from gateau_dagster.evaluation.generation.in_process import Decoded, GenerationRequest, decode, pads_left
from tests.evaluation.generation.asking import tiny
from tests.tiny_models import text, tokenizer

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
    alone = [decode(tiny(kind), [one], ENDS)[0] for one in asked]
    assert alone == [slow(kind, one) for one in asked]
    if pads_left(tiny(kind)):
        assert decode(tiny(kind), asked, ENDS) == alone


def test_attention_allows_padding() -> None:
    assert pads_left(tiny("llama")) and pads_left(tiny("gemma3_text")) and pads_left(tiny("gpt2"))


def test_a_sampled_answer_is_the_same_in_any_company() -> None:
    asked = wanted(temperature=1.5, top_p=0.9)
    together = decode(tiny(), asked, ENDS)
    assert together == [decode(tiny(), [one], ENDS)[0] for one in asked]
    assert together == decode(tiny(), asked, ENDS)
    mixed = [wanted()[0], asked[1]]
    assert decode(tiny(), mixed, ENDS) == [decode(tiny(), [wanted()[0]], ENDS)[0], together[1]]
    other = [GenerationRequest(ids=one.ids, generation=one.generation, draws=f"4{one.draws}") for one in asked]
    assert decode(tiny(), other, ENDS) != together


@pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (2.0, 0.8)])
def test_draws_follow_the_chances(temperature: float, top_p: float) -> None:
    generation = Generation(max_new_tokens=1, temperature=temperature, top_p=top_p)
    ids, draws = tokenizer().encode("the ledger"), 600
    asked = [GenerationRequest(ids=ids, generation=generation, draws=str(n)) for n in range(draws)]
    drawn = Counter(each.text for each in decode(tiny(), asked, frozenset()))
    chances = torch.softmax(next_chances("llama", ids) / temperature, -1).tolist()
    expected, kept = Counter[str](), 0.0
    for token in sorted(range(len(chances)), key=lambda each: -chances[each]):
        if kept < top_p:
            expected[str(tokenizer().decode([token], skip_special_tokens=True))] += chances[token]
            kept += chances[token]
    assert drawn.keys() <= expected.keys()
    for said, weight in expected.most_common(3):
        share = weight / kept
        assert abs(drawn[said] / draws - share) < 4 * math.sqrt(share * (1 - share) / draws)


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


def test_a_draw_is_looked_up_as_written_down() -> None:
    """One token: the uniform number's place among the cumulated chances."""
    ids = tokenizer().encode("the ledger")
    chances = torch.softmax(next_chances("llama", ids) / 1.3, -1)
    for draws in ("a", "b", "c", "d"):
        number, total = random.Random(draws).random(), 0.0
        for token in sorted(range(len(chances)), key=lambda each: (-chances[each].item(), each)):
            total += chances[token].item()
            if total > number:
                break
        one = GenerationRequest(ids=ids, generation=Generation(max_new_tokens=1, temperature=1.3), draws=draws)
        assert decode(tiny(), [one], frozenset())[0].text == tokenizer().decode([token])
