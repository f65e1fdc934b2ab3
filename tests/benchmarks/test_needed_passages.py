"""Composed questions with known truth, and the figures of the check `needed` on them."""

import json
from pathlib import Path
from typing import Any

import figures
import needed_passages
import pytest
import torch
from real_text_passages import Passages, read_questions
from transformers import AutoModelForCausalLM

from tests import tiny_models
from tests.benchmarks.questions import write_questions


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Passages:
    return Passages(read_questions(write_questions(tmp_path_factory.mktemp("nq") / "nq.jsonl")), "choose")


def test_where_the_answers_stand_is_the_truth(known: Passages) -> None:
    found = [*needed_passages.composed(known, 12, 0)]
    assert found == [*needed_passages.composed(known, 12, 0)]
    assert {each.kind for each in found} == set(needed_passages.NEEDS_ALL)
    for each in found:
        if each.kind == "two_hop":
            continue
        answers = each.answer.removeprefix("First: ").rstrip(".").split(". Second: ")
        places = [{number for number, text in enumerate(each.passages) if one in text} for one in answers]
        assert all(len(place) == 1 for place in places), each
        assert (len(set.union(*places)) == len(each.passages)) == needed_passages.NEEDS_ALL[each.kind], each


def test_each_kind_gets_its_figures(known: Passages, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = tiny_models.model_config("llama", max_position_embeddings=4096)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "tiny")
    tiny_models.tokenizer().save_pretrained(tmp_path / "tiny")
    nq = write_questions(tmp_path / "nq.jsonl")
    what = ["--fold", "choose", "--count", "3", "--draws", "20", "--dtype", "float32"]
    where = ["--nq", str(nq), "--models", str(tmp_path / "tiny"), "--out", str(tmp_path / "found.json")]
    assert needed_passages.main([*where, *what]) == 0
    measured = json.loads((tmp_path / "found.json").read_text())
    found: dict[str, Any] = measured["results"]["tiny"]
    assert found["samples"] == dict.fromkeys(needed_passages.NEEDS_ALL, 3)
    assert set(found["figures"]) == {"all kinds", *needed_passages.NEEDS_ALL}
    assert found["figures"]["both"]["auroc"]["low"] <= found["figures"]["both"]["auroc"]["high"]
    assert "| `both` | yes |" in figures.needed_auroc(figures.needed_passages(measured))
