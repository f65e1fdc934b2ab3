"""`scoring.compile`: the model's layers through torch.compile, once for each loaded model."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException

from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.loading import LoadedModel
from gateau_dagster.scoring.output_layer import backbone
from gateau_dagster.scoring.packing import packs_documents


def compile_layers(loaded: LoadedModel) -> None:
    """Let every later pass of this model run compiled, for prompts of any length; does nothing the second time.

    Layers of one kind share one compilation, which happens in the first passes; where it fails, these raise
    GateauError. The attention functions stay as they are and split the graph: they look at lengths in Python.
    """
    for layer in _layers(loaded):
        if not isinstance(layer.forward, _Compiled):
            packs_documents(loaded)  # tried with the model's own attention, which is not worth compiling
            layer.forward = _Compiled(layer.forward)


def _layers(loaded: LoadedModel) -> Iterable[torch.nn.Module]:
    """The decoder's layers; the whole body where it does not keep them in a list."""
    body = backbone(loaded)
    count = getattr(loaded.model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    lists = (part for part in body.modules() if isinstance(part, torch.nn.ModuleList) and len(part) == count)
    return next(lists, [body])


class _Compiled:
    """A compiled function whose compiler's failures say which setting to change."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = torch.compile(function, dynamic=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._function(*args, **kwargs)
        except TorchDynamoException as error:
            lines = " ".join(line.strip() for line in str(error).splitlines()[:3])
            raise GateauError(
                f"scoring.compile: torch cannot compile this model here ({type(error).__name__}: {lines}). "
                "Remove scoring.compile: scores are the same without it."
            ) from error
