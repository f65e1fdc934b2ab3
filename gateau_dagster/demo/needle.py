"""The needle benchmark in the synthetic language: what `evaluation.needle` takes in its place."""

from typing import TypedDict

from gateau_dagster.demo.language import ATTRIBUTES, VALUES

FACT_TEMPLATE = " note {key} {value} . "
QUESTION_TEMPLATE = "recall {key}"
ANSWER_TEMPLATE = "{key} {value} ."


class NeedleKey(TypedDict):
    """The fields of config.NeedlePair."""

    key: str
    values: list[str]


def needle_pairs() -> list[NeedleKey]:
    """Every attribute with its values."""
    return [{"key": name, "values": list(VALUES[name])} for name in ATTRIBUTES]
