"""The part of a causal language model whose last hidden states meet the output layer."""

import torch
from transformers import PreTrainedModel


def body_of(model: PreTrainedModel) -> torch.nn.Module:
    """`base_model`, or what the model really calls where that is another part; the model itself where none is found.

    Llama 4 does not name its body as its class says; OPT and the decoders of Bart and its like call the decoder within
    their body. Whoever needs the parts apart has to try whether they are (`last_layers.head`).
    """
    body = model.base_model
    if body is model:
        body = getattr(model, "model", model)
    inner = getattr(body, "decoder", None)
    return inner if isinstance(inner, PreTrainedModel) else body
