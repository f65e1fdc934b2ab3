"""What a model really calls before its output layer, and that its scores are those of its own pass."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from gateau_dagster.models.body import body_of
from gateau_dagster.models.forward import response_nll
from gateau_dagster.models.packing import packs_documents
from gateau_dagster.models.prompt import build_prompt
from tests.tiny_models import loaded_model, samples, tokenizer

_KINDS = {
    "llama": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64, "dropout": 0.0},
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 96, "attention_chunk_size": 40},
}


@pytest.mark.parametrize("kind", _KINDS)
def test_scores_are_those_of_the_whole_model(kind: str) -> None:
    loaded = loaded_model(kind, **_KINDS[kind])
    called = []
    handle = body_of(loaded.model).register_forward_hook(lambda *_: called.append(True))
    prompts = [build_prompt(tokenizer(), one, max_length=300) for one in samples()[:2]]
    plain = []
    with torch.no_grad():
        for prompt in prompts:
            logits = loaded.model(input_ids=torch.tensor([prompt.ids]), use_cache=False).logits[0]
            first = prompt.response_span[0]
            plain.append(cross_entropy(logits[first - 1 : -1], torch.tensor(prompt.response), reduction="none"))
    handle.remove()
    assert len(called) == 2 and packs_documents(loaded)
    torch.testing.assert_close(response_nll(loaded, prompts), torch.cat(plain).double(), rtol=1e-4, atol=1e-4)
