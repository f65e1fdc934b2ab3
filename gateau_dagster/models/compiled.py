"""Run the model's layers through torch.compile, once per loaded model (`scoring.compile`)."""

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from gateau_dagster.errors import GateauError
from gateau_dagster.models.last_layers import backbone, decoder_layers
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.models.packing import narrows_last_layer, packs_documents


def compile_layers(loaded: LoadedModel) -> None:
    """Compile this model's layers for prompts of any length; do nothing the second time.

    The last layer is not compiled if it computes only the rows that are read. Skipping rows saves more, and its hooks
    would be recompiled for each set of rows. Layers of one kind share one compilation, which happens in the first
    passes; these raise GateauError if it fails. The attention functions are not compiled and split the graph, because
    they read lengths in Python.
    """
    # Probe before anything is compiled: the probes use the model's own attention, which is not worth compiling.
    narrow = packs_documents(loaded) and narrows_last_layer(loaded)
    layers = decoder_layers(loaded)
    for layer in layers[:-1] if narrow else layers or [backbone(loaded)]:
        if not isinstance(layer.forward, _Compiled):
            layer.forward = _Compiled(layer.forward)


class _Compiled:
    """A compiled function whose compilation errors name the setting to change."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = torch.compile(function, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._function(*args, **kwargs)
        except TorchDynamoException as error:
            lines = " ".join(line.strip() for line in str(error).splitlines()[:3])
            raise GateauError(
                "scoring.compile",
                f"scoring.compile: torch cannot compile this model here ({type(error).__name__}: {lines}). "
                "Remove scoring.compile: scores are the same without it.",
            ) from error
