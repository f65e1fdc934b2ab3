"""How often a model of the synthetic language recalls a fact, by the fact's distance: the proof that a pair works."""

import numpy as np
import torch
from transformers import PreTrainedModel

from gateau_dagster.demo.language import (
    BOS,
    SENTENCE_WORDS,
    VOCABULARY,
    document,
    random_facts,
    recall_instruction,
)

_ROWS = 10  # of a batch
_IDS = {word: index for index, word in enumerate(VOCABULARY)}


@torch.no_grad()
def recall_at(model: PreTrainedModel, distance: int, *, repeats: int, seed: int = 0) -> float:
    """Share of `repeats` facts, `distance` tokens before the end of the context, whose value is the likeliest word.

    `distance` in tokens, rounded down to whole sentences. Chance is 1/8, the values of an attribute.
    """
    rng = np.random.default_rng((seed, distance))
    after = distance // SENTENCE_WORDS
    rows, wanted = [], []
    for _ in range(repeats):
        (fact,) = random_facts(rng, 1)
        words = [BOS, "###", "Input:", *document(rng, after + 2, {2: [fact]})]
        words += ["###", "Instruction:", *recall_instruction([fact]), "###", "Response:", fact.attribute]
        rows.append([_IDS[word] for word in words])
        wanted.append(_IDS[fact.value])
    found = [
        model(input_ids=torch.tensor(rows[start : start + _ROWS])).logits[:, -1] for start in range(0, repeats, _ROWS)
    ]
    return float((torch.cat(found).argmax(-1) == torch.tensor(wanted)).float().mean())
