from pathlib import Path

from transformers import AutoTokenizer

from gateau_dagster.demo.language import VOCABULARY
from gateau_dagster.demo.samples import demo_samples
from gateau_dagster.demo.short_chat import demo_short_chat
from gateau_dagster.demo.tokenizer import build_tokenizer


def test_ids_are_places_in_the_vocabulary() -> None:
    tokenizer = build_tokenizer(256)
    ids = tokenizer("note gem gem-3 .", add_special_tokens=False)["input_ids"]
    assert [VOCABULARY[index] for index in ids] == ["note", "gem", "gem-3", "."]
    assert len(tokenizer) == len(VOCABULARY) == 423
    assert tokenizer("note")["input_ids"][0] == tokenizer.bos_token_id


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


def test_unknown_words_are_unk() -> None:
    tokenizer = build_tokenizer(256)
    assert tokenizer("zebra", add_special_tokens=False)["input_ids"] == [tokenizer.unk_token_id]


def test_it_survives_saving(tmp_path: Path) -> None:
    build_tokenizer(2048).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token, loaded.unk_token) == ("<s>", "</s>", "<pad>", "<unk>")
    assert loaded.model_max_length == 2048
    assert loaded("recall gem")["input_ids"] == build_tokenizer(2048)("recall gem")["input_ids"]


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
