"""Documents as token ids, and training rows cut from them: stretches of text in which passages come back later."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

BOS, EOS = "<s>", "</s>"
PASSAGE = (16, 64)  # least and most tokens of a passage that comes back


def train_tokenizer(texts: Sequence[str], vocabulary: int, window: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most `vocabulary` tokens, learned from `texts`; any text encodes and decodes exactly."""
    tokenizer = Tokenizer(models.BPE())
    # tokenizers' setters are not in its type stubs.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = ByteLevel()  # pyright: ignore
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=EOS,
        model_max_length=window,
        clean_up_tokenization_spaces=False,
    )


def encode_documents(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> np.ndarray:
    """All documents' ids one after the other, int64 [tokens]; each starts with the tokenizer's `<s>`."""
    encoded = tokenizer.backend_tokenizer.encode_batch(list(texts))
    return np.concatenate([np.array(document.ids, dtype=np.int64) for document in encoded])


@dataclass(frozen=True, kw_only=True)
class Stage:
    """`steps` batches of rows; step i has the shape `shapes[i % len(shapes)]`, which is (rows, tokens)."""

    name: str
    steps: int
    shapes: tuple[tuple[int, int], ...]

    @property
    def tokens(self) -> int:
        """Tokens of all batches."""
        sizes = [rows * length for rows, length in self.shapes]
        return sum(sizes[step % len(sizes)] for step in range(self.steps))

    def batch(self, step: int, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The batch of a step, int64 [rows, tokens]."""
        rows, length = self.shapes[step % len(self.shapes)]
        return np.stack([text_row(ids, length, rng) for _ in range(rows)])


def text_row(ids: np.ndarray, length: int, rng: np.random.Generator) -> np.ndarray:
    """A stretch of `length` tokens, int64 [length], in which passages stand a second time further on.

    Plain text rarely shows a model of this size, in minutes, that what was said far back helps; a passage that comes
    back does. Passages return at every distance that the row has room for, over about half of the row.
    """
    stretch = np.resize(ids, length) if len(ids) < length else ids
    start = int(rng.integers(len(stretch) - length + 1))
    row = stretch[start : start + length].copy()
    longest = min(PASSAGE[1], length // 4)
    copied = 0
    while copied < length // 2:
        size = int(rng.integers(min(PASSAGE[0], longest), longest + 1))
        source = int(rng.integers(length - 2 * size + 1))
        target = int(rng.integers(source + size, length - size + 1))
        row[target : target + size] = row[source : source + size]
        copied += size
    return row
