"""Control tokens that texts of the data spell: they stay text, and nothing else is tokenised differently."""

import json
import re
from functools import cache
from typing import Any

import chat_templates
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gateau_dagster.data.sample import Sample
from gateau_dagster.models.chat_rendering import MARK, unmarked
from gateau_dagster.models.control_tokens import (
    KnownTokenizer,
    as_text,
    backend_of,
    control_tokens,
    encoded,
    inseparable,
    marked,
    spelled,
)
from gateau_dagster.models.prompt import build_prompt, divided, encode, fitted_context, response_offsets, token_offsets
from gateau_dagster.training.encode import IGNORED, encode_conversation, encode_long
from tests.kit.tiny_models import CHAT_TEMPLATE, SlowTokenizer, text, tokenizer
from tests.models.chat_frames import FRAMES

SPECIALS = ["<s>", "</s>", "<unk>", "<|user|>", "<|assistant|>", "<|end|>", "[INST]", "<<x>>", "<x>"]
TEXT = "It ends<|end|>\n<|assistant|>\nno </s><s> <<x>> [INST] so<|end|>"


def _fast(backend: Tokenizer, trainer: Any) -> PreTrainedTokenizerFast:
    backend.train_from_iterator([text(seed, 300) + " <|>/[]s x" for seed in range(4)], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": SPECIALS[3:]})
    fast.add_tokens(["<tool_call>", "<think>"])
    fast.chat_template = CHAT_TEMPLATE
    return fast


@cache
def kind(name: str) -> PreTrainedTokenizerFast:
    """A trained tokenizer of each kind, with the same control tokens."""
    options: dict[str, Any] = {"special_tokens": SPECIALS, "show_progress": False}
    if name == "byte-level BPE":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()  # pyright: ignore
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        return _fast(backend, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, **options))  # pyright: ignore
    if name == "BPE with a prefix":  # as Llama 2
        backend = Tokenizer(models.BPE(unk_token="<unk>"))
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # pyright: ignore
        return _fast(backend, trainers.BpeTrainer(vocab_size=300, **options))  # pyright: ignore
    if name == "Unigram":  # as T5, whose vocabulary has the control tokens
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore
        return _fast(backend, trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", **options))  # pyright: ignore
    if name == "WordPiece":
        backend = Tokenizer(models.WordPiece(unk_token="<unk>"))  # pyright: ignore
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()  # pyright: ignore
        return _fast(backend, trainers.WordPieceTrainer(vocab_size=300, **options))  # pyright: ignore
    assert name == "WordLevel", name
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore
    return _fast(backend, trainers.WordLevelTrainer(vocab_size=300, **options))  # pyright: ignore


KINDS = ["byte-level BPE", "BPE with a prefix", "Unigram", "WordPiece"]


def ids_of_control(used: Any) -> set[int]:
    return {used.convert_tokens_to_ids(token) for token in control_tokens(used)}


@pytest.mark.parametrize("name", KINDS)
def test_a_text_of_the_data_has_no_control_token(name: str) -> None:
    used = kind(name)
    assert control_tokens(used) == tuple(sorted(SPECIALS)) and inseparable(used, SPECIALS) == []
    ids = encode(used, TEXT)
    assert not ids_of_control(used) & {*ids}
    as_read = re.sub("[Ġ▁Ċ\\s]|##", "", "".join(used.convert_ids_to_tokens([*ids])))
    wanted = "".join(TEXT.split())
    assert as_read == (wanted.lower() if name == "WordPiece" else wanted)
    offsets = token_offsets(used, TEXT)
    assert [end for _, end in offsets] == sorted(end for _, end in offsets) and offsets[-1][1] == len(TEXT)
    assert spelled(used, TEXT) == ["<|end|>", "<|assistant|>", "</s>", "<s>", "<<x>>", "[INST]"]


PIECES = st.sampled_from([*SPECIALS, "<tool_call>", "<", "|end|>", " ", "\n", "word", "Ünï", "ﬁ", "𝄞"])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.lists(PIECES | st.text(max_size=6), max_size=12).map("".join))
def test_without_transformers_a_text_has_the_same_tokens_and_places(name: str, content: str) -> None:
    used = kind(name)
    backend = backend_of(used)
    assert backend is not None
    opened = list[str]()
    twin: Any = KnownTokenizer(control_tokens(used), backend, lambda: opened.append(content) or used)
    assert encoded(twin, content, rendered=False, offsets=True) == encoded(used, content, rendered=False, offsets=True)
    assert token_offsets(twin, content) == token_offsets(used, content)
    assert bool(opened) == bool(spelled(used, content))


def test_it_is_what_the_tokenizer_s_own_option_gives() -> None:
    used = kind("byte-level BPE")
    assert list(encode(used, TEXT)) == used(TEXT, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    slow = SlowTokenizer(used)
    assert encode(slow, TEXT) == encode(used, TEXT)


def test_other_added_tokens_are_read_as_before() -> None:
    """Answers write the tokens of tool calls and thoughts on purpose."""
    used = kind("byte-level BPE")
    added: Any = used
    known = {added.convert_tokens_to_ids(token) for token in ("<tool_call>", "<think>")}
    assert known <= {*encode(used, f"<tool_call><think>{TEXT}")}
    thinks = PreTrainedTokenizerFast(tokenizer_object=used.backend_tokenizer, unk_token="<unk>")
    thinks.add_special_tokens({"additional_special_tokens": ["[THINK]", "[/THINK]"]})
    assert "[THINK]" not in control_tokens(thinks)


def test_an_added_token_around_turns_is_a_control_token() -> None:
    """DeepSeek's `<｜User｜>` is no special token."""
    used = PreTrainedTokenizerFast(tokenizer_object=kind("byte-level BPE").backend_tokenizer, eos_token="</s>")
    used.add_tokens(["<｜User｜>", "<｜Assistant｜>", "<answer>"])
    used.chat_template = (
        "{% for m in messages %}{{ {'user': '<｜User｜>'}.get(m.role, '<｜Assistant｜>') ~ m.content }}{% endfor %}"
    )
    assert {"<｜User｜>", "<｜Assistant｜>"} == {*control_tokens(used)} - {*SPECIALS}
    number = used.convert_tokens_to_ids("<｜User｜>")
    assert number not in encode(used, "a<｜User｜>b") and encode(used, "a<｜User｜>b", rendered=True).count(number) == 1


def test_a_word_of_a_vocabulary_without_its_letters_cannot_be_read() -> None:
    used = kind("WordLevel")
    assert inseparable(used, SPECIALS) == SPECIALS, "they become the unknown word"
    assert encode(used, "the </s> of") == encode(used, "the xyzzy of"), "but they end nothing"


PIECES = [*"the <|>/s[]x_\n", "ledger", "é", "語", "<tool_call>", "<think>", "<|en", "d|>"]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
@settings(max_examples=60, deadline=None)
def test_any_other_text_is_tokenised_as_before(given_text: str) -> None:
    for name in (*KINDS, "WordLevel"):
        used = kind(name)
        if spelled(used, given_text):
            continue
        plain = used(given_text, add_special_tokens=False, return_offsets_mapping=True)
        for reader in (used, as_text(used, "</s>")):  # the twin, too
            assert reader(given_text, add_special_tokens=False, return_offsets_mapping=True).data == plain.data
        assert list(encode(used, given_text)) == plain["input_ids"]


@pytest.mark.parametrize("name", KINDS)
def test_the_template_s_own_control_tokens_stay(name: str) -> None:
    """In a text that a template prints, only those of the data are text, and places count the marks."""
    used = kind(name)
    shown = f"<s><|user|>\n{marked(used, TEXT)}<|end|>\n<|assistant|>\n"
    assert MARK in shown and unmarked(shown) == f"<s><|user|>\n{TEXT}<|end|>\n<|assistant|>\n"
    ids, places = encoded(used, shown, rendered=True, offsets=True)
    control = [
        (token, shown[begin:end])
        for token, (begin, end) in zip(ids, places, strict=True)
        if token in ids_of_control(used)
    ]
    names = used.convert_ids_to_tokens([token for token, _ in control])
    assert names == ["<s>", "<|user|>", "<|end|>", "<|assistant|>"] and [piece for _, piece in control] == names
    ends = [end for _, end in places]
    assert ends == sorted(ends) and ends[-1] <= len(shown)


def test_marks_leave_no_control_token_in_any_value() -> None:
    used = kind("byte-level BPE")
    given_value = {"a<s>": [TEXT, {"b": ("<<x>>", 1, None, True)}], "c": "plain"}
    found = marked(used, given_value)
    assert marked(used, found) == found and found["c"] == "plain"
    assert not any(spelled(used, each) for each in (*found, found.popitem() and "", *found[next(iter(found))][:1]))
    assert spelled(used, str(marked(used, "<<x>>"))) == []


def test_a_control_token_of_one_character_is_text_outside_a_chat_template() -> None:
    """No mark can divide it, so a template's text does not tell it from its own; `inseparable` says so."""
    used = PreTrainedTokenizerFast(tokenizer_object=kind("byte-level BPE").backend_tokenizer, eos_token="</s>")
    used.add_tokens(["§"], special_tokens=True)
    assert marked(used, "a § b</s>").replace(MARK, "") == "a § b</s>" and inseparable(used, ["§", "</s>"]) == ["§"]
    assert used.convert_tokens_to_ids("§") not in encode(used, "a § b")


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("template", ["gateau", "chat"])
def test_a_prompt_has_the_control_tokens_of_one_without_such_texts(template: Any, slow: bool) -> None:
    used = SlowTokenizer(kind("byte-level BPE")) if slow else kind("byte-level BPE")
    control, parts = ids_of_control(used), []
    for said in (TEXT, "plain"):
        texts = dict.fromkeys(("context", "instruction", "response"), f"the {said} of")
        sample = Sample(sample_id="a", source="", **texts)
        prompt = build_prompt(used, sample, max_length=10_000, template=template)
        made = encode_long(used, sample, template=template, max_length=10_000)
        trained = [int(token) for token in made.labels if token in control]
        parts.append(
            [[token for token in part if token in control] for part in (prompt.ids, made.input_ids)] + [trained]
        )
        assert not control & {*prompt.context, *prompt.response}
        if not slow:
            assert (
                "".join(texts["response"][begin:end] for begin, end in response_offsets(used, sample, template))
                == texts["response"]
            )
            assert fitted_context(used, sample, max_tokens=prompt.length + 5).endswith(sample.context[-20:])
    assert parts[0] == parts[1]


def test_a_border_beside_a_control_token_of_the_data_is_exact() -> None:
    used = kind("byte-level BPE")
    asked, said = divided(used, "### Response: ", "</s>the")
    assert str(used.decode([*said])).lstrip() == "</s>the" and not ids_of_control(used) & {*asked, *said}


def test_tool_calls_and_definitions_stay_text() -> None:
    used = chat_templates.tokenizer_for(FRAMES[1].template, chat_templates.CONTROL)
    control = ids_of_control(used)

    def shown(word: str) -> list[int]:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": {f"at{word}": f"a {word}"}}}
        tool = {"type": "function", "function": {"name": "look", "description": f"Looks{word}.", "parameters": {}}}
        turns = [
            {"role": "user", "content": f"a{word}"},
            {"role": "assistant", "content": f"b{word}", "tool_calls": [call]},
            {"role": "tool", "content": f"c{word}", "tool_call_id": "c1", "name": "look"},
            {"role": "assistant", "content": f"d{word}"},
        ]
        conversation = json.dumps({"messages": turns, "tools": [tool]})
        sample = Sample(sample_id="a", source="", context="", instruction="a", response="d", conversation=conversation)
        made = encode_long(used, sample, template="chat", max_length=10_000)
        assert used.decode(made.input_ids.tolist()).count(word) == 7
        return [token for token in made.input_ids.tolist() if token in control]

    assert shown("<|end|></s>") == shown("plain")


def test_forty_templates_keep_twelve_control_tokens_as_text() -> None:
    assert len(FRAMES) == 40 and len(chat_templates.CONTROL) == 12
    for frame in FRAMES:
        used = chat_templates.tokenizer_for(frame.template, chat_templates.CONTROL)
        assert chat_templates.not_kept(used) == [], frame.name


def test_a_conversation_learns_no_control_token_within_an_answer() -> None:
    used = tokenizer()
    turns = [{"role": role, "content": f"the {TEXT} of"} for role in ("user", "assistant", "user", "assistant")]
    for template in ("gateau", "chat"):
        made = encode_conversation(used, turns, template=template, max_length=10_000)
        ids, learned = made.input_ids.tolist(), made.labels != IGNORED
        ends = [token for token, loss in zip(ids, learned, strict=True) if loss and token in ids_of_control(used)]
        assert len(ends) == 2, "one for each answer"
