"""What the config.json of a reward model says of its head: read before anything is loaded."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from gateau_dagster.errors import GateauError

Label: TypeAlias = str | int

_HEAD = "ForSequenceClassification"
_UNNAMED = {"0": "LABEL_0", "1": "LABEL_1"}  # the labels of a config.json that says nothing of them


def check_folder(folder: Path, label: Label | None) -> None:
    """As `check_settings`, for a model folder that can be read; one that cannot is refused when it is loaded."""
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(settings, dict):
        check_settings(settings, label, name=str(folder))


def check_settings(settings: Mapping[str, Any], label: Label | None, *, name: str) -> None:
    """Whether a model with these settings, of its config.json, gives one number a text.

    Raises GateauError when it has no sequence classification head, or several outputs of which `label` names none.
    """
    check_architecture(settings.get("architectures") or [], name=name)
    label_index(settings.get("id2label") or _UNNAMED, label, name=name)


def check_architecture(architectures: list[str], *, name: str) -> None:
    """Raises GateauError unless one of a model's `architectures` has a sequence classification head."""
    if not any(_HEAD in one for one in architectures):
        raise GateauError(
            f"{name} is a {', '.join(architectures) or 'model of unknown architecture'}, which has no head that rates "
            "a text: a model with task reward is saved as ...ForSequenceClassification, with one output"
        )


def label_index(labels: Mapping[Any, str], label: Label | None, *, name: str) -> int:
    """Which of a model's outputs is the quality: the only one, or the one that `label` names, by name or number.

    `labels`: id2label of its configuration. Raises GateauError as `check_settings` does.
    """
    by_index = {int(index): str(text) for index, text in labels.items()}
    named = ", ".join(f"{index} ({text})" for index, text in sorted(by_index.items()))
    if label is None:
        if len(by_index) == 1:
            return min(by_index)
        raise GateauError(
            f"{name} has {len(by_index)} outputs, {named}, where a reward model has one: say which of them is the "
            "quality with selection.options.car.label, or use a model with one output"
        )
    found = [index for index, text in by_index.items() if label in {index, text}]
    if len(found) != 1:
        raise GateauError(f"{name} has no output {label!r} for selection.options.car.label; it has {named}")
    return found[0]
