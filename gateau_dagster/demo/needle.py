"""The needle benchmark in the synthetic language: what `evaluation.needle` holds in its place."""

from typing import Any

from gateau_dagster.demo.language import ATTRIBUTES, VALUES

NEEDLES: dict[str, Any] = {
    "fact": " note {key} {value} . ",
    "question": "recall {key}",
    "answer": "{key} {value} .",
    "pairs": [{"key": name, "values": list(VALUES[name])} for name in ATTRIBUTES],
}
