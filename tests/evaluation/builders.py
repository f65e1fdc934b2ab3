"""A random Llama of one layer over the synthetic language's words, and samples in that language."""

import random
from functools import cache

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from gateau_dagster.data.sample import Sample
from gateau_dagster.demo.tokenizer import build_tokenizer
from gateau_dagster.models.loading import LoadedModel

WORDS = ("the", "note", "recall", ".", "of")


@cache
def loaded(seed: int = 0) -> LoadedModel:
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(512)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
        max_position_embeddings=512,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return LoadedModel(model=model, tokenizer=tokenizer, window=512, device=torch.device("cpu"), name=f"tiny-{seed}")


def vocabulary() -> list[str]:
    """Every ordinary word, in order of id."""
    words = loaded().tokenizer.get_vocab()
    return [word for word in sorted(words, key=words.__getitem__) if word.isalnum()]


def sample(index: int, *, context: int, response: int = 4) -> Sample:
    rng = random.Random(index)
    words = vocabulary()
    texts = [" ".join(rng.choices(words, k=count)) for count in (context, 3, response)]
    return Sample(sample_id=f"s{index:02d}", source="test", context=texts[0], instruction=texts[1], response=texts[2])
