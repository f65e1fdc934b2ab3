"""The part of a causal language model whose last hidden states meet the output layer."""

import torch
from transformers import PreTrainedModel


def body_of(model: PreTrainedModel) -> torch.nn.Module:
    """Return `base_model`, or the part that the model really calls; the model itself if there is no such part.

    Llama 4 does not name its body as its class says. OPT and the decoders of Bart and similar models call the decoder
    within their body. To use the parts separately, check first that they are separate (`last_layers.head`).
    """
    body = model.base_model
    if body is model:
        body = getattr(model, "model", model)
    inner = getattr(body, "decoder", None)
    return inner if isinstance(inner, PreTrainedModel) else body
