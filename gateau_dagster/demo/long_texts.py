"""Texts of the synthetic language from which a model learns to read further: a document, and questions about it."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gateau_dagster.demo.language import BOS
from gateau_dagster.demo.rows import training_row

LONG_LENGTHS, SHORT_LENGTHS = (2048, 2048, 1024), (512, 160)
FACTS = (6, 28)
_AROUND = 2  # bos and eos, which training puts around a text


def texts(rng: np.random.Generator, *, tokens: int, lengths: tuple[int, ...]) -> Iterator[str]:
    """Texts of at least `tokens` tokens in all, which take turns to be of `lengths` with the tokens around each."""
    made = 0
    while made < tokens:
        for length in lengths:
            most = length // 12
            facts = min(int(rng.integers(FACTS[0], FACTS[1] + 1)), most)
            queries = min(length // 2, int(rng.integers(32, 256)))
            row = training_row(rng, length=length - _AROUND + 1, context=length - queries, fact_count=facts)
            assert row.words[0] == BOS
            yield " ".join(row.words[1:])
            made += length


def write_texts(path: Path, rng: np.random.Generator, *, tokens: int, lengths: tuple[int, ...]) -> None:
    """JSON Lines with a field `text`; see `texts`."""
    lines = (json.dumps({"text": text}) + "\n" for text in texts(rng, tokens=tokens, lengths=lengths))
    path.write_text("".join(lines), encoding="utf-8")
