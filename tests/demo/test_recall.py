from types import SimpleNamespace
from typing import Any

import torch

from gateau_dagster.demo.language import VOCABULARY
from gateau_dagster.demo.recall import recall_at


class Reader:
    """Answers by searching the text, no further than `sight` tokens before the instruction."""

    def __init__(self, sight: int) -> None:
        self.sight = sight
        self.distances: list[int] = []

    def __call__(self, input_ids: torch.Tensor) -> Any:
        logits = torch.zeros((*input_ids.shape, len(VOCABULARY)))
        for row, ids in enumerate(input_ids.tolist()):
            words = [VOCABULARY[index] for index in ids]
            end, note = words.index("Instruction:") - 1, words.index("note")
            self.distances.append(end - note)
            assert words[-1] == words[note + 1]
            if end - note <= self.sight:
                logits[row, -1, ids[note + 2]] = 1.0
        return SimpleNamespace(logits=logits)


def test_a_reader_recalls_within_its_sight_and_not_beyond() -> None:
    reader: Any = Reader(sight=200)
    assert recall_at(reader, 128, repeats=25) == 1.0
    assert recall_at(reader, 512, repeats=25) == 0.0
    assert set(reader.distances) == {128 + 4, 512 + 4}
