"""Check from a reward model's configuration that it has a head, and find the output that is the quality."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gateau_dagster.errors import GateauError

Label: TypeAlias = str | int

_HEAD = "ForSequenceClassification"


def check_architecture(architectures: Sequence[str], *, name: str) -> None:
    """Raise GateauError unless one of a model's `architectures` has a sequence classification head."""
    if not any(_HEAD in one for one in architectures):
        raise GateauError(
            "models.reward",
            f"{name} is a {', '.join(architectures) or 'model of unknown architecture'}, which does not rate "
            "texts: with task reward, give a model saved as ...ForSequenceClassification with one output",
        )


def label_index(labels: Mapping[Any, str], label: Label | None, *, name: str) -> int:
    """Return the index of the model's output that is the quality: the only one, or the one that `label` names.

    `label` is a name or a number; `labels` is id2label of the configuration. Raises GateauError if the model has
    several outputs and `label` is None, or if `label` does not match exactly one of them.
    """
    by_index = {int(index): str(text) for index, text in labels.items()}
    named = ", ".join(f"{index} ({text})" for index, text in sorted(by_index.items()))
    if label is None:
        if len(by_index) == 1:
            return min(by_index)
        raise GateauError(
            "models.reward",
            f"{name} has {len(by_index)} outputs, {named}, but a reward model has one: name the output for "
            "quality in selection.options.car.label, or use a model with one output",
        )
    found = [index for index, text in by_index.items() if label in {index, text}]
    if len(found) != 1:
        raise GateauError(
            "models.reward", f"{name} has no output {label!r} for selection.options.car.label; it has {named}"
        )
    return found[0]
