import json
from pathlib import Path

import numpy as np

from gateau_dagster.demo.language import VALUES
from gateau_dagster.demo.long_texts import LONG_LENGTHS, texts, write_texts
from gateau_dagster.demo.tokenizer import build_tokenizer


def test_texts_are_as_long_as_asked_with_bos_and_eos_around_them() -> None:
    tokenizer = build_tokenizer(max(LONG_LENGTHS))
    made = list(texts(np.random.default_rng(0), tokens=6000, lengths=LONG_LENGTHS))
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in made]
    assert [len(ids) + 2 for ids in encoded] == [2048, 2048, 1024] * 2
    assert not any(set(tokenizer.all_special_ids) & set(ids) for ids in encoded)


def test_what_is_asked_is_mostly_stated_before() -> None:
    """All but the twentieth of the values that responses name stand in the document of their text."""
    named = {value for values in VALUES.values() for value in values}
    stated: list[bool] = []
    for text in texts(np.random.default_rng(1), tokens=60_000, lengths=(2048,)):
        document, asked = text.split("Instruction:", 1)
        stated += [word in document.split() for word in asked.split() if word in named]
    assert len(stated) > 200 and 0.9 < sum(stated) / len(stated) < 1


def test_the_same_generator_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_texts(tmp_path / name, np.random.default_rng(3), tokens=1000, lengths=(160, 512))
    one, two = ((tmp_path / name).read_text(encoding="utf-8") for name in ("one", "two"))
    assert one == two and all(set(json.loads(line)) == {"text"} for line in one.splitlines())
