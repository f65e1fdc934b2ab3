"""Perplexity by length and LongPPL against slow twins that read one prefix after the other."""

import gc
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gateau_dagster import tables
from gateau_dagster.errors import GateauError
from gateau_dagster.features.evaluation.benchmark import Measured
from gateau_dagster.features.evaluation.registry import chosen_benchmarks
from gateau_dagster.models import packing
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.scoring.response_perplexity import key_tokens, short_context_nlls
from tests.features.evaluation.builders import chosen, materials, project, write_jsonl
from tests.kit import tiny_models
from tests.kit.error_codes import refused
from tests.kit.project import configured

from . import official
from .builders import loaded, sample

SIZES = (130, 60, 150, 200)
LONGPPL: dict[str, Any] = {"length": 100, "short": 30, "step": 10, "gain": 0.05, "least": -9.0}
NAMES = [f"texts.jsonl:{place}" for place in (1, 3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four documents, of which the first, the third and the fourth are long enough."""
    rows = [{"body": {"text": sample(place, context=size).context}} for place, size in enumerate(SIZES)]
    write_jsonl(tmp_path / "texts.jsonl", rows)
    return tmp_path


def _measured(
    folder: Path, name: str, variant: str = "b", model: Callable[[str], LoadedModel] | None = None, **options: Any
) -> Measured:
    given = {"texts": "texts.jsonl", "field": "body.text", "documents": 2, **options}
    config = project(folder, name, **given)
    models = {"base": loaded(0), "b": loaded(1)}
    found = chosen(config).measure(materials(config, model=model or models.__getitem__), variant)
    assert found.table.schema == tables.schema(tables.SCORES) and chosen(config).bounds == (1, math.inf)
    return found


def _slow(seed: int, ids: list[int]) -> float:
    """-log P of the last token given the others."""
    with torch.no_grad():
        logits = loaded(seed).model(input_ids=torch.tensor([ids[:-1]])).logits[0, -1].double()
    return -torch.log_softmax(logits, -1)[ids[-1]].item()


def _ids(place: int, size: int) -> list[int]:
    tokenizer = loaded().tokenizer
    ids = tokenizer.encode(sample(place, context=SIZES[place]).context, add_special_tokens=False)
    return [tokenizer.bos_token_id, *ids][:size]


def test_perplexity_of_every_length_is_that_of_its_prefix(folder: Path) -> None:
    found = _measured(folder, "text_perplexity", lengths=[100, 20])
    expected = {}
    for name, place in zip(NAMES, (0, 2), strict=True):
        ids = _ids(place, 100)
        nlls = [_slow(1, ids[: end + 1]) for end in range(1, 100)]
        expected |= {f"{name}/{length}": math.exp(sum(nlls[: length - 1]) / (length - 1)) for length in (20, 100)}
    assert dict(found.table.select("question_id", "value").iter_rows()) == pytest.approx(expected, rel=1e-5)
    assert found.table["group"].to_list() == ["20", "100"] * 2 and not found.rejected


@pytest.mark.parametrize("name", ["text_perplexity", "longppl"])
def test_what_does_not_fit_may_fit_elsewhere(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(packing, "lone_states", full)
    found = _measured(folder, name, **({"lengths": [100]} if name == "text_perplexity" else LONGPPL))
    assert found.table.is_empty() and [each.may_pass for each in found.rejected] == [True, True]
    assert "100 tokens do not fit into memory" in found.rejected[0].reason


def test_a_short_context_is_all_that_a_token_is_given() -> None:
    ids = tuple(_ids(0, 100))
    found = short_context_nlls(loaded(), ids, short=30, step=10)
    assert found is not None and np.isnan(found[:29]).all()
    for place in (30, 39, 40, 75, 99):
        first = (place // 10 - 3) * 10
        assert found[place - 1] == pytest.approx(_slow(0, [*ids[first : place + 1]]), rel=1e-5)


def test_tokens_count_that_the_long_context_makes_likely() -> None:
    long, short = np.array([0.5, 0.5, 3.0, 1.9, 0.1]), np.array([2.6, 2.4, 9.0, np.nan, 2.2])
    assert key_tokens(long, short, gain=2.0, least=-2.0).tolist() == [True, False, False, False, True]


def test_longppl_is_the_variant_s_on_the_base_s_tokens(folder: Path) -> None:
    found = _measured(folder, "longppl", **LONGPPL)
    expected = {}
    for name, place in zip(NAMES, (0, 2), strict=True):
        ids = _ids(place, 100)
        keys = [
            end
            for end in range(30, 100)
            if (long := _slow(0, ids[: end + 1])) < 9.0 and _slow(0, ids[(end // 10 - 3) * 10 : end + 1]) - long > 0.05
        ]
        assert 0 < len(keys) < 60
        expected[name] = math.exp(sum(_slow(1, ids[1 : end + 1]) for end in keys) / len(keys))
    assert dict(found.table.select("question_id", "value").iter_rows()) == pytest.approx(expected, rel=1e-5)
    none = _measured(folder, "longppl", **{**LONGPPL, "gain": 50.0})
    assert none.table.is_empty() and [each.sample_id for each in none.rejected] == NAMES
    assert "no token of it gains" in none.rejected[0].reason


@pytest.mark.parametrize("bos", [True, False])
def test_longppl_is_the_published_code_s(bos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own function beside ours on the same two models, with a tokenizer that puts <bos> in front, and without."""
    published = official.loaded(official.code("LongPPL/longppl/longppl.py"), monkeypatch)
    models = {name: tiny_models.loaded_model("llama", bos=False, seed=seed) for seed, name in enumerate(("base", "b"))}
    text = tiny_models.text(3, 150)
    if bos:
        models, text = {"base": loaded(0), "b": loaded(1)}, sample(0, context=153).context
    tokenizer = models["base"].tokenizer
    length = len(tokenizer(text)["input_ids"])
    write_jsonl(tmp_path / "texts.jsonl", [{"text": text}])
    config = project(tmp_path, "longppl", texts="texts.jsonl", length=length, short=30, step=10, gain=0.05, least=-9.0)
    found = chosen(config).measure(materials(config, model=models.__getitem__), "b")
    wanted = published.compute_longppl(
        text, models["b"].model, models["base"].model, tokenizer, tokenizer, None, 30, 10, alpha=0.05, beta=-9.0
    )
    assert 10 < wanted["n_key_token"] < length - 30
    assert found.table["value"].item() == pytest.approx(float(wanted["longppl"]), rel=1e-5)


def test_a_variant_with_other_tokens_is_not_measured(folder: Path) -> None:
    models = {"base": loaded(0), "b": tiny_models.loaded_model("llama", bos=False, seed=1)}
    found = _measured(folder, "longppl", model=models.__getitem__, **LONGPPL)
    assert found.table.is_empty() and all("other tokens" in each.reason for each in found.rejected)


def _with_head(loaded: LoadedModel, scale: float) -> LoadedModel:
    """The model with an output layer of other sizes."""
    model = AutoModelForCausalLM.from_config(loaded.model.config).eval()
    model.load_state_dict(loaded.model.state_dict())
    model.lm_head.weight.data.mul_(scale)
    return replace(loaded, model=model)


@pytest.mark.parametrize(("scale", "reason"), [(math.nan, "nan: try dtype"), (1e5, "its perplexity overflows")])
@pytest.mark.parametrize("name", ["text_perplexity", "longppl"])
def test_no_value_is_infinite_or_none(name: str, scale: float, reason: str, folder: Path) -> None:
    options = {"lengths": [20]} if name == "text_perplexity" else LONGPPL
    models = {"base": loaded(0), "b": _with_head(loaded(1), scale)}
    found = _measured(folder, name, model=models.__getitem__, **options)
    assert found.table.is_empty() and len(found.rejected) == 2
    assert all(reason in each.reason and "of the text" in each.reason for each in found.rejected)


def test_a_base_without_numbers_is_not_one_whose_tokens_gain_nothing(folder: Path) -> None:
    models = {"base": _with_head(loaded(0), math.nan), "b": loaded(1)}
    found = _measured(folder, "longppl", model=models.__getitem__, **LONGPPL)
    assert found.table.is_empty() and all("nan: try dtype" in each.reason for each in found.rejected)


def test_a_model_reads_no_further_than_its_learned_positions(folder: Path) -> None:
    short = tiny_models.loaded_model("gpt2", n_positions=64, vocab_size=512)
    models = {"base": loaded(0), "b": replace(short, tokenizer=loaded().tokenizer)}
    found = _measured(folder, "text_perplexity", model=models.__getitem__, lengths=[40, 64, 65])
    assert found.table["question_id"].to_list() == [f"{name}/{length}" for name in NAMES for length in (40, 64)]
    assert [each.sample_id for each in found.rejected] == [f"{name}/65" for name in NAMES]
    assert "learned positions for 64 tokens" in found.rejected[0].reason
    found = _measured(folder, "longppl", model=models.__getitem__, **LONGPPL)
    assert [each.sample_id for each in found.rejected] == NAMES and found.table.is_empty()
    assert "learned positions for 64 tokens" in found.rejected[0].reason


@pytest.mark.parametrize(
    ("name", "fitting", "beyond", "place"),
    [
        ("text_perplexity", {"lengths": [64]}, {"lengths": [65, 2]}, "lengths: 65"),
        ("longppl", {"length": 64, "short": 9, "step": 3}, {"length": 65, "short": 9, "step": 3}, "length: 65"),
    ],
)
def test_learned_positions_are_known_beforehand(
    name: str, fitting: dict[str, Any], beyond: dict[str, Any], place: str, folder: Path
) -> None:
    tiny_models.model_config("gpt2", n_positions=64).save_pretrained(folder / "gpt2")
    pair = {"short": {"path": "a/short"}, "long": {"path": "gpt2"}}
    for options, error in ((fitting, ""), (beyond, rf"evaluation\.{name}\.{place} tokens are more than the 64")):
        found = configured(models=pair, evaluation={"benchmarks": [name], name: {"texts": "texts.jsonl", **options}})
        config = found.model_copy(update={"folder": folder})
        with pytest.raises(GateauError, match=error) if error else nullcontext():
            chosen_benchmarks(config)[name].check_known_models()


def test_longppl_holds_one_model_at_a_time(folder: Path) -> None:
    held: list[ref[torch.nn.Module]] = []

    def model(name: str) -> LoadedModel:
        gc.collect()
        assert not any(each() for each in held), f"another model is held while {name} is loaded"
        found = _with_head(loaded(0), 1.0)
        held.append(ref(found.model))
        return found

    found = _measured(folder, "longppl", model=model, **LONGPPL)
    assert found.table.height == 2


@pytest.mark.parametrize("name", ["text_perplexity", "longppl"])
def test_texts_without_what_is_asked_are_named(name: str, folder: Path) -> None:

    longest: dict[str, Any] = {"lengths": [4000]} if name == "text_perplexity" else {"length": 5000}
    with refused("evaluation.no_text", rf"evaluation\.{name}\.texts: no document has [45]000 tokens"):
        _measured(folder, name, **longest)
    with refused("evaluation.no_text", rf"evaluation\.{name}\.texts: texts\.jsonl:1: no text: the field 'x'"):
        _measured(folder, name, field="x")
