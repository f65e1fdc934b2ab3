"""Documents as ragged as real ones: lengths of long instructions and of short chats, random tokens."""

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from gateau_dagster.training.dataset import TrainingDocument
from gateau_dagster.training.encode import IGNORED

_CHARACTERS_PER_TOKEN = 4  # of English text, roughly

Lengths = list[tuple[int, int]]
"""Of each document: its tokens, and how many of them are the response's."""

# The middles of the twentieths of 142 long instructions of LongAlign's form and of 500 short chats.
_LONG = (3017, 3614, 3964, 4078, 4559, 5482, 6018, 6563, 6753, 7148)
_LONG += (8049, 8426, 9933, 10743, 12348, 14152, 17669, 20865, 25940, 35024)
_LONG_RESPONSES = (5, 7, 8, 9, 16, 23, 25, 31, 41, 45, 63, 68, 76, 96, 107, 139, 255, 399, 423, 522)
_SHORT = (22, 25, 26, 27, 28, 29, 30, 31, 31, 32, 34, 35, 37, 52, 56, 58, 59, 61, 62, 68)
_SHORT_RESPONSES = (18, 19, 19, 21, 21, 21, 22, 22, 23, 23, 25, 25, 27, 44, 47, 47, 50, 51, 51, 56)


def built_in() -> tuple[Lengths, Lengths]:
    """(long, short). Responses of long instructions are as long whatever their context is: mixed by a fixed step."""
    long = [(tokens, _LONG_RESPONSES[7 * index % len(_LONG)]) for index, tokens in enumerate(_LONG)]
    return long, list(zip(_SHORT, _SHORT_RESPONSES, strict=True))


def read_lengths(path: Path) -> Lengths:
    """Of conversations in JSON or JSON lines: `messages` with role and content, or `conversations` with from and value.

    Raises:
        ValueError: the file holds no such conversation.
    """
    content = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    records = json.loads(content) if content.lstrip().startswith("[") else map(json.loads, content.splitlines())
    found = []
    for record in records:
        turns = record.get("messages") or record.get("conversations") or []
        texts = [(turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))) for turn in turns]
        total = sum(len(text) for _, text in texts)
        answers = sum(len(text) for role, text in texts if role in ("assistant", "gpt"))
        if answers >= _CHARACTERS_PER_TOKEN and total > answers:
            found.append((total // _CHARACTERS_PER_TOKEN, answers // _CHARACTERS_PER_TOKEN))
    if not found:
        raise ValueError(f"{path.name} holds no conversation with an answer")
    return found


def draw(
    long: Sequence[tuple[int, int]],
    short: Sequence[tuple[int, int]],
    *,
    count: int,
    long_share: float,
    shrink: int,
    longest: int,
    vocabulary: int,
    rng: random.Random,
) -> list[TrainingDocument]:
    """`count` documents in random order, `long_share` of them long: lengths divided by `shrink`, then cut at `longest`.

    Dividing all lengths alike keeps how ragged they are, which cutting them does not.
    """
    lengths = [rng.choice(long if index < round(count * long_share) else short) for index in range(count)]
    rng.shuffle(lengths)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    documents = []
    for row, (total, answer) in enumerate(lengths):
        tokens, response = max(2, min(total // shrink, longest)), max(1, answer // shrink)
        ids = torch.randint(vocabulary, (tokens,), generator=generator)
        labels = ids.clone()
        labels[: max(1, tokens - response)] = IGNORED
        documents.append(TrainingDocument(row=row, input_ids=ids, labels=labels, positions=torch.arange(tokens)))
    return documents
