"""Documents as one batch: padded on the right, or side by side."""

import torch

from gateau_dagster.training.collate import PadRight, SideBySide, sequence_weights
from gateau_dagster.training.encode import IGNORED
from gateau_dagster.training.rows import TrainingDocument


def document(ids: list[int], row: int, positions: list[int] | None = None) -> TrainingDocument:
    labels = torch.tensor([IGNORED, *ids[1:]])
    return TrainingDocument(
        row=row,
        input_ids=torch.tensor(ids),
        labels=labels,
        positions=torch.tensor(positions or list(range(len(ids)))),
    )


def test_padding_on_the_right() -> None:
    batch = PadRight(pad_token_id=9)([[document([1, 2, 3], 4)], [document([5], 7)], []])
    assert batch["input_ids"].tolist() == [[1, 2, 3], [5, 9, 9], [0, 9, 9]]
    assert batch["labels"].tolist() == [[IGNORED, 2, 3], [IGNORED] * 3, [IGNORED] * 3]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert batch["row"].tolist() == [4, 7]
    assert "weights" not in batch


def test_side_by_side_with_their_own_positions() -> None:
    rows = [[document([1, 2, 3], 4, [0, 1, 90]), document([5, 6], 7)], [], [document([8], 2)]]
    batch = SideBySide()(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 5, 6, 8]]
    assert batch["labels"].tolist() == [[IGNORED, 2, 3, IGNORED, 6, IGNORED]]
    assert batch["position_ids"].tolist() == [[0, 1, 90, 0, 1, 0]]
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 5, 6]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 3
    assert batch["row"].tolist() == [4, 7, 2]
    assert "attention_mask" not in batch


def test_a_batch_without_documents_has_one_token_that_nothing_learns() -> None:
    batch = SideBySide(weighted=True)([[], []])
    assert batch["input_ids"].tolist() == [[0]]
    assert batch["labels"].tolist() == [[IGNORED]]
    assert batch["cu_seq_lens_q"].tolist() == [0, 1]
    assert batch["row"].tolist() == []
    assert (batch["weights"] * (batch["labels"] != IGNORED)).sum() == 0


def test_weights_of_a_sequence_sum_to_one_over_its_trained_tokens() -> None:
    labels = torch.tensor([IGNORED, 4, IGNORED, 5, 6])
    assert float(sequence_weights(labels)[labels != IGNORED].sum()) == 1.0
    documents = [document([1, 2, 3], 0), document([4, 5], 1)]
    packed = SideBySide(weighted=True)([documents])
    padded = PadRight(pad_token_id=0, weighted=True)([[each] for each in documents])
    for batch in (packed, padded):
        assert float(batch["weights"][batch["labels"] != IGNORED].sum()) == 2.0
        assert batch["weights"].dtype == torch.float32
