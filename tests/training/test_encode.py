"""Encoded samples and conversations: positions with loss, blocks, what is cut."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from gateau_dagster.config.models import Template
from gateau_dagster.data.sample import read_conversation
from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.models import chat_rendering
from gateau_dagster.models.chat_rendering import render_chat, rendered_answers
from gateau_dagster.models.prompt import build_prompt
from gateau_dagster.training.encode import (
    DROPPED,
    IGNORED,
    REWRITTEN,
    Encoded,
    Truncation,
    encode_conversation,
    encode_long,
)
from tests.kit.error_codes import refused
from tests.training.builders import CHAT_TEMPLATE, LONG, SAMPLE, TALK, learned, tokenizer

# Templates strip the ends of a message: none begins or ends with white space.
# Some begin with a word that the tokenizer has with the space before it.
MESSAGES = st.lists(
    st.builds("{}{}x".format, st.sampled_from(["x", "the"]), st.text("ab é☃\n<|>:#", max_size=9)),
    min_size=2,
    max_size=9,
)


def slow_reading(
    tokens: PreTrainedTokenizerFast, ids: list[int], answers: re.Pattern[str], learned: list[bool]
) -> tuple[list[int], list[int]]:
    """Labels and blocks from the rendered text: a token counts if some byte lies in a group of a learned answer."""
    text = str(tokens.decode(ids))
    inside = [False] * len(text.encode())
    for match, counts in zip(answers.finditer(text), learned, strict=False):
        first, last = (len(text[:place].encode()) for place in match.span(1))
        inside[first:last] = [counts] * (last - first)
    spelt = tokens.convert_ids_to_tokens(ids)
    specials = set(tokens.all_special_tokens) | {"<|user|>", "<|assistant|>", "<|end|>"}
    labels, blocks, place = [], [0], 0
    for token, piece in zip(ids, spelt, strict=True):
        end = place + (len(piece.encode()) if piece in specials else len(piece))  # byte-level: a character is a byte
        counts, place = any(inside[place:end]), end
        labels.append(token if counts else IGNORED)
        if counts == bool(len(blocks) % 2):
            blocks.append(0)
        blocks[-1] += 1
    assert place == len(inside)
    return labels, blocks


@pytest.mark.parametrize(
    ("template", "ends", "tokens"),
    [("gateau", [1], tokenizer()), ("chat", [4], tokenizer()), ("gateau", [], tokenizer(bos=False, eos=False))],
)
def test_a_long_sample_is_the_scoring_prompt_and_loses_the_left_of_its_context(
    template: Template, ends: list[int], tokens: PreTrainedTokenizerFast
) -> None:
    prompt = build_prompt(tokens, SAMPLE, max_length=LONG, template=template)
    whole = prompt.length + len(ends)
    for dropped in range(len(prompt.context) + 1):
        encoded = encode_long(tokens, SAMPLE, template=template, max_length=whole - dropped)
        asked = [*prompt.prefix, *prompt.context[dropped:], *prompt.suffix]
        answer = [*prompt.response, *ends]
        assert encoded.input_ids.tolist() == asked + answer
        assert encoded.labels.tolist() == [IGNORED] * len(asked) + answer
        assert encoded.block_tokens.tolist() == [len(asked), len(answer)]
        assert encoded.truncated_tokens == dropped
        assert encoded.input_ids.dtype == encoded.labels.dtype == encoded.block_tokens.dtype == "int32"
    with pytest.raises(UnscorableSampleError, match="instruction and response alone take"):
        encode_long(tokens, SAMPLE, template=template, max_length=whole - len(prompt.context) - 1)


@pytest.mark.parametrize(
    ("template", "text", "answers"),
    [
        (
            "gateau",
            "<s>### Instruction: be brief\n\nwhat?\n\n### Response: the answer</s>"
            "\n\n### Instruction: why?\n\n### Response: it is</s>",
            [" the answer</s>", "it is</s>"],  # " it" is two tokens
        ),
        (
            "chat",
            "<|system|>\nbe brief<|end|>\n<|user|>\nwhat?<|end|>\n<|assistant|>\nthe answer<|end|>"
            "\n<|user|>\nwhy?<|end|>\n<|assistant|>\nit is<|end|>",
            ["the answer<|end|>", "it is<|end|>"],
        ),
    ],
)
def test_a_conversation_is_its_turns_up_to_the_last_answer(template: Template, text: str, answers: list[str]) -> None:
    encoded = encode_conversation(tokenizer(), TALK, template=template, max_length=LONG)
    assert tokenizer().decode(encoded.input_ids.tolist()) == text
    assert learned(tokenizer(), encoded) == answers


ANSWERS: dict[Template, re.Pattern[str]] = {
    "gateau": re.compile(r"\n\n### Response: (.*?</s>)", re.DOTALL),
    "chat": re.compile(r"<\|assistant\|>\n(.*?<\|end\|>)", re.DOTALL),
}


@pytest.mark.parametrize("template", ["gateau", "chat"])
@given(
    texts=MESSAGES,
    system=st.booleans(),
    share=st.floats(0.3, 1),
    flags=st.lists(st.booleans(), min_size=4, max_size=4) | st.just([True] * 4),
)
def test_labels_and_blocks_of_any_conversation(
    template: Template, texts: list[str], system: bool, share: float, flags: list[bool]
) -> None:
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]
    messages = [{"role": "system", "content": "be brief"}] * system + turns
    given: dict[str, Any] = {"template": template, "max_length": LONG}
    everything = encode_conversation(tokenizer(), messages, **given)
    flags = flags[: len(texts) // 2]
    given["trained"] = [False] * system + [place % 2 == 1 and flags[place // 2] for place in range(len(texts))]
    if not any(flags):
        with pytest.raises(UnscorableSampleError, match="no answer"):
            encode_conversation(tokenizer(), messages, **given)
        return
    whole = encode_conversation(tokenizer(), messages, **given)
    labels, blocks = slow_reading(tokenizer(), whole.input_ids.tolist(), ANSWERS[template], flags)
    assert whole.input_ids.tolist() == everything.input_ids.tolist()[: len(labels)]
    assert (whole.labels.tolist(), whole.block_tokens.tolist()) == (labels, blocks)
    assert len(blocks) == 2 * sum(flags)
    total = len(labels) + whole.truncated_tokens
    room = max(blocks[0] + 1, int(share * len(labels)))
    cut = encode_conversation(tokenizer(), messages, **given | {"max_length": room})
    kept = max(place for place in range(room) if labels[place] != IGNORED) + 1
    assert cut.input_ids.tolist() == whole.input_ids.tolist()[:kept]
    assert cut.labels.tolist() == labels[:kept]
    assert cut.block_tokens.tolist() == slow_blocks(blocks, kept)
    assert cut.truncated_tokens == total - kept and (not all(flags) or total == len(labels))
    with pytest.raises(UnscorableSampleError, match=f"max_length = {blocks[0]} of its {total} tokens"):
        encode_conversation(tokenizer(), messages, **given | {"max_length": blocks[0]})


def slow_blocks(blocks: list[int], kept: int) -> list[int]:
    """The blocks of the first `kept` tokens."""
    found: list[int] = []
    for size in blocks:
        if sum(found) < kept:
            found.append(min(size, kept - sum(found)))
    return found


def test_the_first_token_is_never_learned() -> None:
    tokens = tokenizer(bos=False, chat="{{ messages[-1].content if not add_generation_prompt }}")
    encoded = encode_conversation(tokens, [{"role": "user", "content": ""}, TALK[2]], template="chat", max_length=LONG)
    assert encoded.labels[0] == IGNORED
    assert encoded.labels[1:].tolist() == encoded.input_ids[1:].tolist()
    assert encoded.block_tokens.tolist() == [0, len(encoded.labels)]


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


# Templates with tools. Each has the form of a real one.
_ROLE = "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n"
_ASKS = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
HERMES = (  # Qwen2.5, Hermes: calls beside the text, results in a user's turn
    "{% if tools %}<|system|>\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>\n{% endif %}"
    "{% elif m.role == 'assistant' %}<|assistant|>\n{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    f"<|end|>\n{{% else %}}{_ROLE}{{% endif %}}{{% endfor %}}{_ASKS}"
)
LLAMA = (  # Llama 3.1: one call per turn, without a text; results as JSON
    "{% for m in messages %}{% if m.role == 'tool' %}<|ipython|>\n{{ m.content | tojson }}<|end|>\n"
    "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls only!') }}"
    "{% endif %}{% set c = m.tool_calls[0].function %}<|assistant|>\n"
    '{"name": "{{ c.name }}", "parameters": {{ c.arguments | tojson }}}<|end|>\n'
    f"{{% else %}}{_ROLE}{{% endif %}}{{% endfor %}}{_ASKS}"
)
CHANNELS = (  # gpt-oss: a call has another frame and another end than a text
    "{% for m in messages %}{% if m.role == 'assistant' %}{% for c in m.tool_calls or [] %}"
    "<|assistant|> to={{ c.function.name }}<|user|>{{ c.function.arguments | tojson }}</s>{% endfor %}"
    "{% if not m.tool_calls %}<|assistant|>final<|user|>{{ m.content }}<|end|>{% endif %}{% else %}"
    "<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
QWEN3 = (  # thoughts only after the last question
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}"
    + HERMES.replace(
        "{{ m.content }}{% for c",
        "{% set said = m.content.split('</think>')[-1].strip() %}{% if loop.index0 > ns.last %}<think>\n"
        "{{ m.content.split('</think>')[0].replace('<think>', '').strip() if '</think>' in m.content }}\n</think>\n\n"
        "{% endif %}{{ said }}{% for c",
    )
)
TEXT_ARGUMENTS = HERMES.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")  # DeepSeek-V3
BLOCK = "<think>\n\n</think>\n\n"
NO_SYSTEM = "{% for m in messages if m.role != 'system' %}{{ m.content | replace('it is', 'IT') }}<|end|>{% endfor %}"


@pytest.mark.parametrize(
    ("chat", "messages", "reason"),
    [
        (None, [], "no answer"),
        (None, TALK[1:2], "no answer"),
        (None, TALK[2:3], "turn 1: the assistant answers nothing"),
        (None, [*TALK[1:3], TALK[4]], "turn 3: the assistant answers nothing"),
        # Learned would be to end at once.
        *((chat, [TALK[1], turn("assistant", said), *TALK[3:5]], "^turn 2: the answer is empty$")
          for chat in (None, CHAT_TEMPLATE) for said in ("", " \n")),
        (None, [*TALK[1:4], turn("assistant", "")], "^turn 4: the answer is empty$"),
        ("{{ raise_exception('roles must alternate') }}", TALK, "roles must alternate"),
        ("{% for m in messages %}{{ m.content | upper }}<|end|>{% endfor %}", TALK[1:], "prints another answer"),
        ("{{ messages[0].content }}<|end|>", TALK[1:], "does not print the answer"),
        ("{% for m in messages if m.role != 'user' %}{{ m.content }}<|end|>{% endfor %}", TALK[1:],
         "does not print what user"),
        # Turns are counted as given, even where the template has no place for the system's turn.
        (NO_SYSTEM, TALK[1:], "^turn 4: the chat template prints another answer"),
        (NO_SYSTEM, TALK, "^turn 5: the chat template prints another answer"),
    ],
)  # fmt: skip
def test_a_conversation_that_cannot_be_learned_is_rejected(
    chat: str | None, messages: list[dict[str, str]], reason: str
) -> None:
    with pytest.raises(UnscorableSampleError, match=reason):
        encode_conversation(tokenizer(chat=chat), messages, template="chat" if chat else "gateau", max_length=LONG)


def test_a_tokenizer_without_a_chat_template_is_refused() -> None:
    with refused("models.chat_template"):
        encode_conversation(tokenizer(chat=None), TALK, template="chat", max_length=LONG)


def test_what_a_template_puts_before_an_answer_is_in_both_halves_and_learned_in_none() -> None:
    tokens = tokenizer(chat=QWEN3)
    encoded = encode_long(tokens, SAMPLE, template="chat", max_length=LONG)
    short = encode_conversation(tokens, TALK[1:3], template="chat", max_length=LONG)
    for each, answer in ((encoded, "the answer is 17"), (short, "the answer")):
        assert str(tokens.decode(each.input_ids.tolist())).endswith(f"<|assistant|>\n{BLOCK}{answer}<|end|>")
        assert learned(tokens, each) == [f"{answer}<|end|>"]
    prompt = build_prompt(tokens, SAMPLE, max_length=LONG, template="chat")
    assert encoded.input_ids.tolist()[:-1] == [*prompt.ids], "what was scored is what is trained"


def test_an_earlier_answer_that_a_template_rewrites_stays_without_loss() -> None:
    tokens = tokenizer(chat=QWEN3)
    encoded = encode_conversation(tokens, TALK[1:], template="chat", max_length=LONG)
    assert tokens.decode(encoded.input_ids.tolist()) == (
        f"<|user|>\nwhat?<|end|>\n<|assistant|>\nthe answer<|end|>\n<|user|>\nwhy?<|end|>\n<|assistant|>\n{BLOCK}"
        "it is<|end|>"
    )
    assert learned(tokens, encoded) == ["it is<|end|>"] and encoded.unlearned == {REWRITTEN: 1}


@pytest.mark.parametrize("template", [QWEN3, CHAT_TEMPLATE, QWEN3.replace("loop.index0 > ns.last", "false")])
def test_the_thoughts_of_a_last_answer_are_learned_as_written(template: str) -> None:
    """Even of a template that drops them everywhere, as DeepSeek-R1's does: the model is to write them."""
    answer = "<think>\nso\n</think>\n\nit is"
    talk = [TALK[1], {"role": "assistant", "content": answer}]
    for encoded in (
        encode_conversation(tokenizer(chat=template), talk, template="chat", max_length=LONG),
        encode_long(tokenizer(chat=template), replace(SAMPLE, response=answer), template="chat", max_length=LONG),
    ):
        assert learned(tokenizer(), encoded) == [f"{answer}<|end|>"]


@pytest.mark.parametrize("what", ["{{ raise_exception('no system') }}", ""])
def test_a_system_text_without_a_place_is_put_before_the_first_turn(what: str) -> None:
    chat = CHAT_TEMPLATE.replace("<|{{", "{% if m.role == 'system' %}" + what + "{% else %}<|{{").replace(
        "<|end|>\n{% endfor %}", "<|end|>\n{% endif %}{% endfor %}"
    )
    encoded = encode_conversation(tokenizer(chat=chat), TALK, template="chat", max_length=LONG)
    assert str(tokenizer().decode(encoded.input_ids.tolist())).startswith("<|user|>\nbe brief\n\nwhat?<|end|>")
    assert learned(tokenizer(), encoded) == ["the answer<|end|>", "it is<|end|>"]


@pytest.mark.parametrize("template", ["gateau", "chat"])
def test_truncation_on_the_right_takes_the_end_of_the_answer(template: Template) -> None:
    whole = encode_long(tokenizer(), SAMPLE, template=template, max_length=LONG, truncation="right")
    plain = encode_long(tokenizer(), SAMPLE, template=template, max_length=LONG)
    assert whole.input_ids.tolist() == plain.input_ids.tolist()
    answer = int((whole.labels != IGNORED).argmax())
    cut = encode_long(tokenizer(), SAMPLE, template=template, max_length=answer + 2, truncation="right")
    assert cut.input_ids.tolist() == whole.input_ids.tolist()[: answer + 2]
    assert cut.labels.tolist() == whole.labels.tolist()[: answer + 2]
    assert (cut.block_tokens.tolist(), cut.truncated_tokens) == ([answer, 2], len(whole.input_ids) - answer - 2)
    message = rf"after training\.max_length = {answer} of its {len(whole.input_ids)} tokens\. .*truncation: context\."
    with pytest.raises(UnscorableSampleError, match=message):
        encode_long(tokenizer(), SAMPLE, template=template, max_length=answer, truncation="right")
    with pytest.raises(UnscorableSampleError, match="the response has no tokens"):
        encode_long(tokenizer(), replace(SAMPLE, response=""), template=template, max_length=LONG, truncation="right")


@pytest.mark.parametrize("template", ["gateau", "chat"])
@pytest.mark.parametrize("truncation", ["context", "right"])
def test_a_trimmed_sample_is_the_prompt_that_a_window_shows(truncation: Truncation, template: Template) -> None:
    whole = encode_long(tokenizer(), SAMPLE, template=template, max_length=LONG)
    full = build_prompt(tokenizer(), SAMPLE, max_length=LONG, template=template)
    count = len(full.context)
    for window in range(full.length - count, full.length + 2):
        shown = build_prompt(tokenizer(), SAMPLE, max_length=window, template=template)
        given = {"template": template, "truncation": truncation, "context_tokens": len(shown.context)}
        cut = encode_long(tokenizer(), SAMPLE, max_length=LONG, **given)
        assert cut.input_ids.tolist() == [*shown.ids, *whole.input_ids[full.length :]]
        assert learned(tokenizer(), cut) == learned(tokenizer(), whole)
        assert (cut.trimmed_tokens, cut.truncated_tokens) == (count - len(shown.context), 0)
    # What is trimmed need not fit; what is left loses its start or its end as ever.
    most = len(whole.input_ids) - count + 2
    cut = encode_long(tokenizer(), SAMPLE, template=template, max_length=most, truncation=truncation, context_tokens=3)
    assert (cut.trimmed_tokens, cut.truncated_tokens) == (count - 3, 1)
    start, end = full.context_span
    trimmed = [*whole.input_ids[:start], *whole.input_ids[end - 3 :]]
    assert cut.input_ids.tolist() == (
        trimmed[:-1] if truncation == "right" else [*trimmed[:start], *trimmed[start + 1 :]]
    )


WITH_TOOLS = {"hermes": HERMES, "llama": LLAMA, "channels": CHANNELS, "qwen3": QWEN3, "deepseek": TEXT_ARGUMENTS}
TOOLS = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": "call00001", "type": "function", "function": {"name": name, "arguments": text}}


TRACE = [
    turn("system", "be brief"),
    turn("user", "what is in the ledger?"),
    turn("assistant", "", tool_calls=[call("read", path="ledger", lines=[1, 2])]),
    turn("tool", 'the "harbour"\nledger', tool_call_id="call00001", name="read"),
    turn("assistant", "the harbour"),
    turn("user", "and what else?"),
    turn("assistant", "", tool_calls=[call("read", path="engine")]),
    turn("tool", "the engine"),
    turn("assistant", "the answer is 17"),
]


def of_turns(messages: list[dict[str, Any]]) -> Any:
    text = json.dumps({"messages": messages, "tools": TOOLS})
    return replace(SAMPLE, response=messages[-1]["content"], conversation=text)


def encoded_turns(template: str, messages: list[dict[str, Any]], **options: Any) -> Encoded:
    given = {"template": "chat", "max_length": LONG} | options
    return encode_long(tokenizer(chat=template), of_turns(messages), **given)


def slow_labels(template: str, messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    """Return ids and labels from the renderings of all prefixes. What an answer adds to its prompt has loss."""
    tokens, given = tokenizer(chat=template), json.loads(json.dumps(messages))
    for message in given:
        for each in message.get("tool_calls", []):
            if template != TEXT_ARGUMENTS:
                each["function"]["arguments"] = json.loads(each["function"]["arguments"])

    tools: list[Any] = TOOLS

    def rendered(count: int, **options: Any) -> str:
        return str(tokens.apply_chat_template(given[:count], tools=tools, tokenize=False, **options))

    whole = rendered(len(given)).rstrip()
    learned_characters = set[int]()
    for place, message in enumerate(given):
        if message["role"] != "assistant" or not message.get("trained", True):
            continue
        begin, after = len(rendered(place, add_generation_prompt=True)), rendered(place + 1).rstrip()
        if whole.startswith(after):
            for frame in (BLOCK, "final<|user|>"):
                begin += len(frame) if whole.startswith(frame, begin) else 0
            learned_characters.update(range(begin, len(after)))
    read = tokens(whole, add_special_tokens=False, return_offsets_mapping=True)
    ids: list[int] = read["input_ids"]
    labels = [
        token if learned_characters.intersection(range(*span)) else IGNORED
        for token, span in zip(ids, read["offset_mapping"], strict=True)
    ]
    return ids, labels


def words(least: int = 1) -> st.SearchStrategy[str]:
    return st.text('abé☃\n":', min_size=least, max_size=9).map(lambda text: f"x{text}x" if least or text else "")


STEPS = st.lists(st.tuples(words(), st.integers(1, 2), words()), max_size=2)
EXCHANGES = st.lists(st.tuples(words(), STEPS, words(), st.booleans()), min_size=1, max_size=3)


@pytest.mark.parametrize("name", WITH_TOOLS)
@settings(max_examples=20)
@given(exchanges=EXCHANGES, system=st.booleans(), thinks=st.booleans())
def test_the_turns_of_a_trace_are_learned_as_the_template_prints_them(
    name: str, exchanges: list[Any], system: bool, thinks: bool
) -> None:
    one = name in {"llama", "channels"}  # they print one call, without a text
    thought = "<think>\nx\n</think>\n\n" if thinks and not one else ""
    messages = [turn("system", "be brief")] if system else []
    for asked, steps, said, trained in exchanges:
        messages.append(turn("user", asked))
        for text, count, result in steps:
            calls = [call("read", path=result)] * (1 if one else count)
            messages.append(turn("assistant", "" if one else thought + text, tool_calls=calls))
            messages += [turn("tool", result)] * len(calls)
        messages.append(turn("assistant", thought + said, **({} if trained else {"trained": False})))
    if not messages[-1].get("trained", True):
        messages[-1].pop("trained")
    encoded = encoded_turns(WITH_TOOLS[name], messages)
    ids, labels = slow_labels(WITH_TOOLS[name], messages)
    assert encoded.input_ids.tolist() == ids and encoded.labels.tolist() == labels
    answers = sum(message["role"] == "assistant" and message.get("trained", True) for message in messages)
    assert encoded.unlearned.get(REWRITTEN, 0) == answers - len(encoded.block_tokens) // 2
    last = encoded_turns(WITH_TOOLS[name], messages, trained_turns="last")
    begin = int(encoded.block_tokens[:-1].sum())
    assert last.input_ids.tolist() == ids and not last.unlearned
    assert last.labels.tolist() == [IGNORED] * begin + labels[begin:]


# What a template may read of a conversation beside the turn that it prints.
READING = {
    **WITH_TOOLS,
    "peeks": HERMES.replace("{% endfor %}" + _ASKS, "{% if loop.last %}\n{% endif %}{% endfor %}" + _ASKS),
    "numbers": HERMES.replace("<|assistant|>\n", "<|assistant|>{{ loop.index }}\n", 1),
    "counts down": HERMES.replace("<|assistant|>\n", "<|assistant|>{{ messages | length - loop.index }}\n", 1),
    "slices": "{% set first = messages[0] %}{% set messages = messages[1:] %}{{ first.content }}" + HERMES,
    "looks at the last": "{{ messages[-1].role }}" + HERMES,
}


@pytest.mark.parametrize("name", READING)
def test_a_long_trace_is_rendered_once_where_the_template_reads_it_in_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, tools = read_conversation(of_turns([*TRACE[:-1], *TRACE[1:-1] * 9, TRACE[-1]]).conversation)
    tokens, rendered = tokenizer(chat=READING[name]), list[int]()

    def counted(*given: Any, **options: Any) -> object:
        rendered.append(len(given[1]))
        return render_chat(*given, **options)

    monkeypatch.setattr(chat_rendering, "render_chat", counted)
    found = rendered_answers(tokens, messages, tools=tools)
    renderings = len(rendered)
    monkeypatch.setattr(chat_rendering, "_places", lambda *given: [0] * (len(given[1]) + 1))
    assert found == rendered_answers(tokens, messages, tools=tools)
    assert len(rendered) - renderings > 60
    if name in {"hermes", "llama", "slices"}:
        assert renderings < 20


def test_a_trace_under_the_scoring_prompt_is_its_last_answer_and_has_no_context_to_trim() -> None:
    plain, sample = (
        encode_long(tokenizer(), each, template="gateau", max_length=LONG) for each in (of_turns(TRACE), SAMPLE)
    )
    assert plain.input_ids.tolist() == sample.input_ids.tolist()
    whole, trimmed = encoded_turns(HERMES, TRACE), encoded_turns(HERMES, TRACE, context_tokens=0)
    assert str(tokenizer().decode(whole.input_ids.tolist())).startswith('<|system|>\n# Tools\n{"type": "function"')
    assert trimmed.input_ids.tolist() == whole.input_ids.tolist() and trimmed.trimmed_tokens == 0


@pytest.mark.parametrize(
    ("template", "said", "reason"),
    [
        (
            CHAT_TEMPLATE,
            "",
            "^the chat template does not print tool calls. Train a model .* scoring.template: gateau",
        ),
        (
            "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools!') }}{% endif %}{% endfor %}"
            + HERMES,
            "",
            "refuses the conversation: no tools!. Train a model",
        ),
        (HERMES.replace("{{ m.content }}\n</tool", "</tool"), "", "^turn 4: .* does not print what tool says. Train"),
        (HERMES.replace("{{ c.function.name }}", "{{ 'GATEAUCALLHERE' }}"), "", "^turn 3: .* calls as they are given"),
        (LLAMA, "I look", "^turn 3: .* its text and its tool calls as they are given"),
    ],
)
def test_a_template_that_does_not_print_a_trace_rejects_it_and_says_the_cure(
    template: str, said: str, reason: str
) -> None:
    with pytest.raises(UnscorableSampleError, match=reason):
        encoded_turns(template, [*TRACE[:2], {**TRACE[2], "content": said}, *TRACE[3:]])


def later(messages: list[dict[str, Any]], begin: int) -> list[dict[str, Any]]:
    """Return the conversation from an answer on, with the first question and the question of that answer."""
    (first, *_), asked = (
        [place for place, each in enumerate(messages[:begin]) if each["role"] == "user"] for _ in "ab"
    )
    question = messages[asked[-1]]["content"]
    if asked[-1] != first:
        question = f"{messages[first]['content']}\n\n{question}"
    return [*messages[:first], turn("user", question), *messages[begin:]]


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_long_conversation_loses_its_oldest_turns_first(name: str) -> None:
    template = WITH_TOOLS[name]
    messages = TRACE[:2] + TRACE[2:4] * 6 + [turn("assistant", "so"), turn("user", "and?")] + TRACE[6:]
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    shorter = [later(messages, begin) for begin in answers[:-1]]
    for begin, each in zip(answers, shorter, strict=False):
        if messages[begin - 1]["role"] == "tool":  # the answer states a result that is left out
            place = len(each) - len(messages) + begin
            each[place] = {**each[place], "trained": False}
    made = [encoded_turns(template, each) for each in shorter]
    for room in range(len(made[-1].input_ids), len(made[0].input_ids), 40):
        cut = encoded_turns(template, messages, max_length=room)
        place = next(place for place, each in enumerate(made) if len(each.input_ids) <= room)
        assert cut.input_ids.tolist() == made[place].input_ids.tolist()
        assert cut.labels.tolist() == made[place].labels.tolist()
        assert cut.unlearned[DROPPED] == sum("trained" in each for each in shorter[place]) + place
        assert abs(cut.truncated_tokens - (len(made[0].input_ids) - len(cut.input_ids))) <= 1


def test_the_longest_turn_loses_its_start_where_all_turns_are_needed() -> None:
    document = " ".join(f"line {number}" for number in range(60))
    messages = [turn("user", f"{document}\n\nwhat?"), *TRACE[2:5]]
    whole = len(encoded_turns(HERMES, messages).input_ids)
    cut = encoded_turns(HERMES, messages, max_length=whole - 50)
    text = str(tokenizer().decode(cut.input_ids.tolist()))
    assert whole - 55 <= len(cut.input_ids) <= whole - 50 and "line 59\n\nwhat?" in text and "line 1 " not in text
    assert learned(tokenizer(), cut) == learned(tokenizer(), encoded_turns(HERMES, messages))
    with pytest.raises(UnscorableSampleError, match=r"the turns that it needs take .* more than the 90 allowed"):
        encoded_turns(HERMES, messages, max_length=90)


def test_truncation_on_the_right_counts_the_answers_that_it_takes() -> None:
    whole = encoded_turns(HERMES, TRACE)
    cut = encoded_turns(HERMES, TRACE, max_length=len(whole.input_ids) - 20, truncation="right")
    assert cut.labels.tolist() == whole.labels.tolist()[: len(cut.labels)] and cut.unlearned == {DROPPED: 1}
    with pytest.raises(UnscorableSampleError, match="truncation: context"):
        encoded_turns(HERMES, TRACE, max_length=len(whole.input_ids) - 20, truncation="right", trained_turns="last")
