import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.errors import GateauError
from gateau_dagster.scoring.heads import Label, check_folder, check_settings, label_index

ONE = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
TWO: dict[str, Any] = ONE | {"id2label": {"0": "bad", "1": "good"}}


@pytest.mark.parametrize(
    ("settings", "label", "message"),
    [
        ({"architectures": ["BertModel"]}, None, "x is a BertModel, which has no head that rates a text: a model with"),
        ({"architectures": ["LlamaForCausalLM"]}, None, "x is a LlamaForCausalLM, which has no head"),
        ({}, None, "x is a model of unknown architecture, which has no head"),
        (TWO, None, r"2 outputs, 0 \(bad\), 1 \(good\), where a reward model has one: .*options\.car\.label, or use"),
        ({"architectures": ONE["architectures"]}, None, r"x has 2 outputs, 0 \(LABEL_0\), 1 \(LABEL_1\)"),
        (TWO, "fair", r"x has no output 'fair' for selection\.options\.car\.label; it has 0 \(bad\), 1 \(good\)"),
        (TWO, 2, "x has no output 2"),
        (ONE, "good", r"x has no output 'good'.*it has 0 \(LABEL_0\)"),
    ],
)
def test_a_wrong_head_is_named(settings: dict[str, Any], label: Label | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(GateauError, match=message):
        check_settings(settings, label, name="x")
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(GateauError, match=message.removeprefix("x ")):
        check_folder(tmp_path, label)


@pytest.mark.parametrize(("settings", "label"), [(ONE, None), (ONE, 0), (TWO, 1), (TWO, "good")])
def test_a_head_with_one_number_passes(settings: dict[str, Any], label: Label | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    check_folder(tmp_path, label)


def test_the_output_is_found_by_name_and_number() -> None:
    assert label_index({0: "bad", 1: "good"}, "good", name="x") == 1
    assert label_index({"0": "bad", "1": "good"}, 0, name="x") == 0
    assert label_index({0: "LABEL_0"}, None, name="x") == 0


def test_names_that_two_outputs_share_name_none() -> None:
    with pytest.raises(GateauError, match="no output 'good'"):
        label_index({0: "good", 1: "good"}, "good", name="x")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_that_cannot_be_read_is_left_to_the_loading(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    check_folder(tmp_path, None)
