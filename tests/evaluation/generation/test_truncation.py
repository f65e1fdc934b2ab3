"""The middle cut: against the rule written down, and against the official file where there is one."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from gateau_dagster.errors import UnscorableSampleError
from gateau_dagster.evaluation.generation.answering import AskedTurn
from gateau_dagster.evaluation.generation.prompts import cut_middle
from tests.evaluation.generation.asking import prompts, question
from tests.tiny_models import text, tokenizer

TEXTS = [text(7, 90), "灯塔 " * 60 + text(8, 40), "naïve café\n\n\n" * 20]


@pytest.mark.parametrize("source", TEXTS)
@pytest.mark.parametrize("limit", [2, 3, 50, 51])
def test_both_ends_stay(source: str, limit: int) -> None:
    ids = tokenizer().encode(source)
    half = limit // 2
    first = tokenizer().decode(ids[:half], skip_special_tokens=True)
    last = tokenizer().decode(ids[len(ids) - half :], skip_special_tokens=True)
    assert cut_middle(tokenizer(), source, limit) == (f"{first}{last}", len(ids) - 2 * half)


def test_what_fits_stays_as_it_is() -> None:
    tokens = len(tokenizer().encode(TEXTS[0]))
    assert cut_middle(tokenizer(), TEXTS[0], tokens) == (TEXTS[0], 0)
    assert cut_middle(tokenizer(), TEXTS[0], tokens - 1)[1] > 0


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(UnscorableSampleError, match="cannot be tokenised"):
        cut_middle(tokenizer(), "\ud800", 10)


def official(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """LongBench's pred.py, with nothing in the place of what it imports and does not need here."""
    for name in ("datasets", "llama_flash_attn_monkey_patch"):
        stub = ModuleType(name)
        vars(stub).update(load_dataset=None, replace_llama_attn_with_flash_attn=None)
        monkeypatch.setitem(sys.modules, name, stub)
    spec = importlib.util.spec_from_file_location("official_pred", folder / "pred.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    monkeypatch.setattr(found, "dist", SimpleNamespace(destroy_process_group=lambda: None))
    return found


class _Here:
    """The tokenizer, whose tensors stay where they are."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        found = self._inner(*arguments, **options)
        found.to = lambda device: found
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def official_inputs(
    folder: Path, contexts: list[str], form: str, limit: int, file: Path, monkeypatch: pytest.MonkeyPatch, used: Any
) -> list[list[int]]:
    """The token ids that the official file gives its model for each context."""
    seen: list[list[int]] = []

    def generate(**given: Any) -> torch.Tensor:
        seen.append(given["input_ids"][0].tolist())
        return given["input_ids"]

    pred = official(folder, monkeypatch)
    model = SimpleNamespace(generate=generate)
    monkeypatch.setattr(pred, "load_model_and_tokenizer", lambda *_: (model, _Here(used)))
    rows = [{"context": each, "answers": [], "all_classes": None, "length": 0} for each in contexts]
    name = "llama2-7b-chat-4k"
    pred.get_pred(0, 1, rows, limit, 8, form, "qasper", "cpu", name, {name: ""}, str(file))
    return seen


@pytest.mark.skipif("GATEAU_LONGBENCH" not in os.environ, reason="GATEAU_LONGBENCH: the folder of LongBench's pred.py")
@pytest.mark.parametrize("limit", [40, 41, 100_000])
def test_prompts_are_those_of_the_official_file_token_for_token(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GATEAU_TOKENIZER: a model folder, for another tokenizer than the tests' own."""
    from transformers import AutoTokenizer

    place = os.environ.get("GATEAU_TOKENIZER")
    used: Any = AutoTokenizer.from_pretrained(place) if place else tokenizer()
    form = "Read this.\n\n{context}\n\nNow answer.\n\nQuestion: what?\n\nAnswer:"
    folder = Path(os.environ["GATEAU_LONGBENCH"])
    wanted = official_inputs(folder, TEXTS, form, limit, tmp_path / "out", monkeypatch, used)
    shown = prompts("[INST]{prompt}[/INST]", tokenizer=used, input_length=limit)
    found = [shown.shown(AskedTurn(question=question("q", form.format(context=each)))) for each in TEXTS]
    assert [list(each.ids) for each in found] == wanted and len(wanted) == len(TEXTS)
    assert all((each.cut_tokens > 0) == (limit < 100) for each in found)
