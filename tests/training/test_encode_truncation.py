"""What a sequence loses that is too long: the left of its context, or its end."""

from dataclasses import replace

import pytest

from gateau_dagster.config.models import Template
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.training.encode import IGNORED, encode_conversation, encode_long

from .builders import tokenizer
from .encoded import LONG, SAMPLE, TALK, learned


@pytest.mark.parametrize("template", ["gateau", "chat"])
def test_truncation_on_the_right_takes_the_end_of_the_answer(template: Template) -> None:
    whole = encode_long(tokenizer(), SAMPLE, template=template, max_length=LONG, truncation="right")
    assert (
        whole.input_ids.tolist()
        == encode_long(tokenizer(), SAMPLE, template=template, max_length=LONG).input_ids.tolist()
    )
    answer = int((whole.labels != IGNORED).argmax())
    cut = encode_long(tokenizer(), SAMPLE, template=template, max_length=answer + 2, truncation="right")
    assert cut.input_ids.tolist() == whole.input_ids.tolist()[: answer + 2]
    assert cut.labels.tolist() == whole.labels.tolist()[: answer + 2]
    assert cut.block_tokens.tolist() == [answer, 2]
    assert cut.truncated_tokens == len(whole.input_ids) - answer - 2
    message = (
        rf"its first answer begins after training\.max_length = {answer} of its {len(whole.input_ids)} tokens\. "
        r"Raise it, or set training\.truncation: context\."
    )
    with pytest.raises(UnscorableSampleError, match=message):
        encode_long(tokenizer(), SAMPLE, template=template, max_length=answer, truncation="right")
    with pytest.raises(UnscorableSampleError, match="the response has no tokens"):
        encode_long(tokenizer(), replace(SAMPLE, response=""), template=template, max_length=LONG, truncation="right")


@pytest.mark.parametrize("template", ["gateau", "chat"])
@pytest.mark.parametrize("dropped", [1, 3])
def test_a_long_sample_loses_the_left_of_its_context(dropped: int, template: Template) -> None:
    whole = encode_long(tokenizer(), SAMPLE, template=template, max_length=LONG)
    prompt = build_prompt(tokenizer(), SAMPLE, max_length=LONG, template=template)
    start, _ = prompt.context_span
    cut = encode_long(tokenizer(), SAMPLE, template=template, max_length=len(whole.input_ids) - dropped)
    for kept, all_of_it in ((cut.input_ids, whole.input_ids), (cut.labels, whole.labels)):
        assert kept.tolist() == [*all_of_it[:start], *all_of_it[start + dropped :]]
    assert cut.truncated_tokens == dropped
    assert learned(tokenizer(), cut) == learned(tokenizer(), whole)


def test_a_long_sample_without_room_for_its_response_is_rejected() -> None:
    whole = encode_long(tokenizer(), SAMPLE, template="gateau", max_length=LONG)
    needed = len(whole.input_ids) - len(build_prompt(tokenizer(), SAMPLE, max_length=LONG).context)
    bare = encode_long(tokenizer(), SAMPLE, template="gateau", max_length=needed)
    assert learned(tokenizer(), bare) == ["the answer is 17</s>"]
    with pytest.raises(UnscorableSampleError, match="instruction and response alone take"):
        encode_long(tokenizer(), SAMPLE, template="gateau", max_length=needed - 1)


@pytest.mark.parametrize("kept", [1, 2])
def test_a_conversation_is_cut_on_the_right(kept: int) -> None:
    whole = encode_conversation(tokenizer(), TALK, template="gateau", max_length=LONG)
    start = int((whole.labels != IGNORED).argmax())
    cut = encode_conversation(tokenizer(), TALK, template="gateau", max_length=start + kept)
    assert cut.input_ids.tolist() == whole.input_ids[: start + kept].tolist()
    assert cut.labels.tolist() == whole.labels[: start + kept].tolist()
    assert cut.truncated_tokens == len(whole.input_ids) - start - kept
    with pytest.raises(UnscorableSampleError, match=f"max_length = {start} of its {len(whole.input_ids)} tokens"):
        encode_conversation(tokenizer(), TALK, template="gateau", max_length=start)
