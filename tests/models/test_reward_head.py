from typing import Any

import pytest

from gateau_dagster.models.reward_head import Label, check_architecture, label_index
from tests.error_codes import refused

ONE = {0: "LABEL_0"}
TWO = {0: "bad", 1: "good"}


@pytest.mark.parametrize(
    ("architectures", "message"),
    [
        (["BertModel"], "x is a BertModel, which does not rate texts: with task reward, give a model saved as"),
        (["LlamaForCausalLM"], "x is a LlamaForCausalLM, which does not rate texts"),
        ([], "x is a model of unknown architecture, which does not rate texts"),
    ],
)
def test_a_wrong_head_is_named(architectures: list[str], message: str) -> None:
    with refused("models.reward", message):
        check_architecture(architectures, name="x")
    check_architecture([*architectures, "BertForSequenceClassification"], name="x")


@pytest.mark.parametrize(
    ("labels", "label", "message"),
    [
        (TWO, None, r"2 outputs, 0 \(bad\), 1 \(good\), but a reward model has one: .*options\.car\.label, or use"),
        (TWO, "fair", r"x has no output 'fair' for selection\.options\.car\.label; it has 0 \(bad\), 1 \(good\)"),
        (TWO, 2, "x has no output 2"),
        (ONE, "good", r"x has no output 'good'.*it has 0 \(LABEL_0\)"),
        ({0: "good", 1: "good"}, "good", "no output 'good'"),
    ],
)
def test_an_output_that_is_none_is_named(labels: dict[int, str], label: Label | None, message: str) -> None:
    with refused("models.reward", message):
        label_index(labels, label, name="x")


@pytest.mark.parametrize(("labels", "label", "index"), [(ONE, None, 0), (ONE, 0, 0), (TWO, 1, 1), (TWO, "good", 1)])
def test_the_output_is_found_by_name_and_number(labels: dict[Any, str], label: Label | None, index: int) -> None:
    assert label_index(labels, label, name="x") == index
    assert label_index({str(number): text for number, text in labels.items()}, label, name="x") == index
