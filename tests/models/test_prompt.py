"""The prompt token by token, its spans, its truncation, and what cannot be made into one."""

import dataclasses

import pytest
from transformers import PreTrainedTokenizerFast

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import Sample
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models.prompt import Prompt, build_prompt, divided, encode, fitted_context, response_offsets
from tests.kit.error_codes import refused
from tests.kit.tiny_models import SlowTokenizer, samples, tokenizer
from tests.scoring.builders import reference_parts, slowly_divided


@pytest.mark.parametrize("template", ["gateau", "chat"])
@pytest.mark.parametrize("bos", [True, False])
def test_parts_are_those_of_the_design(bos: bool, template: Template) -> None:
    for sample in samples():
        prompt = build_prompt(tokenizer(bos=bos), sample, max_length=4096, template=template)
        parts = reference_parts(tokenizer(bos=bos), sample, template)
        assert [list(part) for part in (prompt.prefix, prompt.context, prompt.suffix, prompt.response)] == list(parts)
        assert prompt.truncated_tokens == 0


@pytest.mark.parametrize("answer", ["the", " two spaces", "\n\nafter a line", "é ü 語", "7", "   "])
def test_a_border_token_belongs_to_the_answer(answer: str) -> None:
    used = tokenizer()
    asked, said = divided(used, "### Response: ", answer)
    assert (list(asked), list(said)) == slowly_divided(used, "### Response: ", answer)
    assert list(asked + said) == used.encode(f"### Response: {answer}", add_special_tokens=False), "as plain text"
    assert str(used.decode(list(said))).lstrip(" ") == answer.lstrip(" ")


def test_a_slow_tokenizer_finds_the_same_border() -> None:
    slow = SlowTokenizer(tokenizer())
    for answer in ("the", " two", "7", "\n\nline", ""):
        assert divided(slow, "### Response: ", answer) == divided(tokenizer(), "### Response: ", answer)


def test_a_response_s_tokens_stand_where_its_characters_are() -> None:
    for template in ("gateau", "chat"):
        for sample in samples():
            prompt = build_prompt(tokenizer(), sample, max_length=4096, template=template)
            found = response_offsets(tokenizer(), sample, template)
            assert len(found) == len(prompt.response)
            pieces = [sample.response[begin:end] for begin, end in found]
            assert "".join(pieces).replace(" ", "") == sample.response.replace(" ", "")
            for token, piece in zip(prompt.response, pieces, strict=True):
                told = str(tokenizer().decode([token]))
                assert "\ufffd" in told or told.strip() == piece.strip()  # a part of a character is shown as the mark


def test_spans_find_context_and_response() -> None:
    prompt = build_prompt(tokenizer(), samples()[0], max_length=4096)
    assert prompt.ids[slice(*prompt.context_span)] == prompt.context
    assert prompt.ids[slice(*prompt.response_span)] == prompt.response
    assert len(prompt.ids) == prompt.length == prompt.response_span[1]
    assert prompt.ids[0] == tokenizer().bos_token_id
    assert tokenizer().eos_token_id not in prompt.ids


def test_context_loses_its_left_end_and_nothing_else_does() -> None:
    whole = build_prompt(tokenizer(), samples()[0], max_length=4096)
    fixed = whole.length - len(whole.context)
    for cut in (0, 1, 40, len(whole.context)):
        prompt = build_prompt(tokenizer(), samples()[0], max_length=whole.length - cut)
        assert (prompt.context, prompt.truncated_tokens) == (whole.context[cut:], cut)
        assert (prompt.prefix, prompt.suffix, prompt.response) == (whole.prefix, whole.suffix, whole.response)
    with pytest.raises(UnscorableSampleError, match=f"alone take {fixed} tokens, more than the {fixed - 1} allowed"):
        build_prompt(tokenizer(), samples()[0], max_length=fixed - 1)


@pytest.mark.parametrize(
    ("change", "message"), [({"response": ""}, "no tokens"), ({"context": "a \ud800 b"}, "cannot be tokenised")]
)
def test_an_empty_response_and_text_that_is_not_unicode_are_unscorable(change: dict[str, str], message: str) -> None:
    with pytest.raises(UnscorableSampleError, match=message):
        build_prompt(tokenizer(), dataclasses.replace(samples()[0], **change), max_length=4096)


def test_with_context_keeps_the_frame() -> None:
    prompt = build_prompt(tokenizer(), samples()[0], max_length=200)
    segment = prompt.with_context(prompt.context[3:7])
    assert segment.ids == prompt.prefix + prompt.context[3:7] + prompt.suffix + prompt.response
    assert segment.truncated_tokens == 0 and prompt.truncated_tokens > 0


def _with_template(template: str | None) -> PreTrainedTokenizerFast:
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer().backend_tokenizer)
    fast.chat_template = template
    return fast


def test_instruction_with_braces_or_markers_is_plain_text() -> None:
    sample = Sample(sample_id="x", source="t", context="c", instruction="{context} {{ x }} $1 \\n", response="r")
    for template in ("gateau", "chat"):
        prompt = build_prompt(tokenizer(), sample, max_length=512, template=template)
        assert "{context} {{ x }} $1 \\n" in tokenizer().decode(list(prompt.suffix))
        assert isinstance(prompt, Prompt)


def test_demonstrations_stand_before_everything_and_are_kept() -> None:
    sample, opening = samples()[0], "w1 w2\n\n### Instruction: w3\n\n### Response: w4\n\n"
    plain = build_prompt(tokenizer(), sample, max_length=4096)
    shown = build_prompt(tokenizer(), sample, max_length=4096, opening=opening)
    more = encode(tokenizer(), opening)
    assert more and shown.prefix == (plain.prefix[0], *more, *plain.prefix[1:])
    assert (shown.context, shown.suffix, shown.response) == (plain.context, plain.suffix, plain.response)
    cut = build_prompt(tokenizer(), sample, max_length=plain.length, opening=opening)
    assert cut.prefix == shown.prefix and cut.truncated_tokens == len(more)
    with pytest.raises(UnscorableSampleError, match="demonstrations, instruction and response alone take"):
        build_prompt(tokenizer(), sample, max_length=len(more), opening=opening)


_TURN = "{% for m in messages %}{{ m.role + ': ' + CONTENT + eos_token }}{% endfor %}"
_THINKS = _TURN.replace("CONTENT", "('<think> </think> ' if loop.last else '') + m.content")


@pytest.mark.parametrize(
    "template",
    [tokenizer().chat_template, None, _THINKS, _TURN.replace("CONTENT", "m.content | trim")],
    ids=["its own", "none", "empty thoughts", "trims"],
)
def test_a_fitted_context_is_the_longest_end_that_fits(template: str | None) -> None:
    used = tokenizer()
    used.chat_template = template

    def tokens(sample: Sample) -> int:
        """Count a conversation as a trainer does."""
        if not template:
            return build_prompt(used, sample, max_length=10_000).length + 1  # and eos
        turns = [{"role": "user", "content": sample.user_turn}, {"role": "assistant", "content": sample.response}]
        return len(used.encode(str(used.apply_chat_template(turns, tokenize=False)), add_special_tokens=False))

    cut = 0
    for sample in samples():
        empty = dataclasses.replace(sample, context="")
        shortest = tokens(empty)
        assert fitted_context(used, empty, max_tokens=shortest) == ""
        for limit in range(shortest, tokens(sample) + 2, 7):
            context = fitted_context(used, sample, max_tokens=limit)
            assert sample.context.endswith(context)
            assert limit - 3 <= tokens(dataclasses.replace(sample, context=context)) <= limit or context in (
                "",
                sample.context,
            )
            assert context or limit < shortest + 6
            cut += context != sample.context
        with pytest.raises(UnscorableSampleError, match=f"alone take {shortest} tokens, more than the {shortest - 1} "):
            fitted_context(used, sample, max_tokens=shortest - 1)
    assert cut > 20


def test_a_chat_template_that_refuses_the_sample_is_the_users_error() -> None:
    refuses = _with_template("{{ raise_exception('no answers here') }}")
    with refused("models.chat_template", "cannot be used: no answers here"):
        fitted_context(refuses, samples()[0], max_tokens=64)
