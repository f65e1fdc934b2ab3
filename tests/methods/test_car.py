"""CaR: the reward model's table, its score, and what is wrong with a configuration before any model runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel

from gateau_dagster.config import Config
from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.car import EMBEDDING, QUALITY, embedding_table
from gateau_dagster.methods.registry import chosen_methods, sample_tables
from gateau_dagster.scoring.sample_table import SampleTokens
from gateau_dagster.scoring.text_models import embedding_rows, quality_rows
from gateau_dagster.tables import schema
from tests.kit.error_codes import refused
from tests.kit.project import ROOT
from tests.kit.tiny_models import encoder, samples, save_encoder
from tests.methods.configured import configured
from tests.scoring.builders import running


def with_reward(path: str = "a/reward", task: str = "reward", *, remote_code: bool = False, **options: Any) -> Config:
    reward = {"path": path, "task": task, "trust_remote_code": remote_code}
    models = {"reward": reward, "mini": {"path": "a/mini", "task": "embedding"}}
    return configured(method="car", models=models, options={"car": options})


def test_the_score_is_the_quality() -> None:
    method = chosen_methods(with_reward())["car"]
    assert method.reads() == {"quality/reward": ["sample_id", "quality"]} and method.per_sample
    found = method.scores({"quality/reward": pl.DataFrame({"sample_id": ["b", "a"], "quality": [0.5, -2.0]})})
    assert found.rows() == [("a", -2.0), ("b", 0.5)]


def test_the_tables_make_the_models_rows(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "reward", "bert", "reward", labels=2, id2label={0: "bad", 1: "good"})
    (table,) = sample_tables(with_reward(str(folder), label="good", as_pair=True)).values()
    assert (table.asset, table.model) == ("quality/reward", "reward")
    assert table.settings == {"label": "good", "as_pair": True} and json.dumps(table.settings)
    loaded = encoder(folder, "reward")
    rows: list[Any] = list(table.score(loaded, samples(), running()))
    assert rows == list(quality_rows(loaded, samples(), running(), label="good", as_pair=True))
    assert pl.DataFrame(rows, schema=schema(QUALITY)).height == len(samples())


def test_mdcure_rm_rates_instruction_and_context(tmp_path: Path) -> None:
    """A model in MDCureRM's form, through the program of the docs, against its six criteria of each text alone."""
    base = save_encoder(tmp_path / "base", "llama", "reward")
    torch.manual_seed(5)
    body: Any = AutoModel.from_config(AutoConfig.from_pretrained(base)).eval()
    head = torch.nn.Linear(body.config.hidden_size, 6)
    named = {"BASE_MODEL": body, "regression_head": head}
    tensors = {f"{part}.{name}": one for part, module in named.items() for name, one in module.state_dict().items()}
    (tmp_path / "saved").mkdir()
    save_file(tensors, tmp_path / "saved/model.safetensors", metadata={"format": "pt"})
    # The sizes in its config.json are the defaults of Llama, not those of its base.
    content = {"model_type": "RewardModel", "reward_dim": 6, "base_model_name": str(base), "hidden_size": 4096}
    (tmp_path / "saved/config.json").write_text(json.dumps(content))
    page = (ROOT / "docs/how-to/methods.md").read_text()
    program = next(block for block in page.split("```python\n")[1:] if "MDCureRM" in block).split("```")[0]
    for name, path in (("yale-nlp/MDCureRM", "saved"), ("mdcure_rm", "made")):
        program = program.replace(f'"{name}"', repr(str(tmp_path / path)))
    exec(program, {})

    config = with_reward(str(tmp_path / "made"), text="context")
    chosen_methods(config)["car"].check_known_models()
    (table,) = sample_tables(config).values()
    loaded = encoder(tmp_path / "made", "reward")
    rows: list[Any] = list(table.score(loaded, samples(), running()))
    unread = [(each.sample_id, each.reason) for each in rows if isinstance(each, Reject)]
    assert unread == [(each.sample_id, "the context is empty") for each in samples() if not each.context.strip()]
    rows = [each for each in rows if not isinstance(each, Reject)]
    for row, sample in zip(rows, [each for each in samples() if each.context.strip()], strict=True):
        text = f"Instruction: {sample.instruction}\n\n{sample.context}"
        ids = loaded.tokenizer(text, truncation=True, max_length=loaded.window, return_tensors="pt")["input_ids"]
        relevance, coherence, creativity, integration, relations, complexity = (
            criterion * 4 + 1 for criterion in (head(body(ids).last_hidden_state[0, -1])).tolist()
        )
        score = (relevance + coherence + creativity) / 9 + 2 * (integration + relations + complexity) / 9
        bias = sum(4 * one for one in (head.bias * torch.tensor([1, 1, 1, 2, 2, 2]) / 9).tolist())
        assert row["quality"] + bias + 1 == pytest.approx(score, abs=1e-5)
    assert len({row["quality"] for row in rows}) == len(rows)
    assert table.settings == {"label": None, "as_pair": False, "text": "context"}
    nine, contexts = np.array([9.0, 9.0]), np.array([90.0, 900.0])
    counted = SampleTokens(
        context=contexts, instruction=nine, response=nine, frame=0, opening=0, alone=0, bos=0, special=0, limit=500
    )
    assert table.effort is not None and table.effort(counted).reads_context
    assert table.effort(counted).tokens.tolist() == [99.0, 500.0]


def test_the_defaults_keep_the_settings_of_earlier_stores() -> None:
    config = with_reward()
    (table,) = sample_tables(config).values()
    assert table.settings == {"label": None, "as_pair": False}
    dumped = chosen_methods(config)["car"].options.model_dump(mode="json")
    assert dumped == {"model": "reward", "label": None, "as_pair": False}


def test_the_embedding_table_makes_the_encoders_rows(tmp_path: Path) -> None:
    table = embedding_table("mini")
    assert (table.asset, table.model) == ("embedding/mini", "mini")
    loaded = encoder(save_encoder(tmp_path, "bert", "embedding"), "embedding")
    rows: list[Any] = list(table.score(loaded, samples(), running()))
    assert rows == list(embedding_rows(loaded, samples(), running())) and Reject not in map(type, rows)
    assert pl.DataFrame(rows, schema=schema(EMBEDDING))["embedding"].list.len().to_list() == [32] * len(samples())


def check_known_models(path: Path | str, **options: Any) -> None:
    chosen_methods(with_reward(str(path), **options))["car"].check_known_models()


def test_a_wrong_head_is_known_from_its_configuration(tmp_path: Path) -> None:
    two = save_encoder(tmp_path / "two", "bert", "reward", labels=2)
    with refused("models.reward", r"selection\.options\.car\.model.*2.*0.*LABEL_0.*1"):
        check_known_models(two)
    check_known_models(two, label=1)
    with refused("models.reward", r"selection\.options\.car\.model.*'good'"):
        check_known_models(two, label="good")
    headless = save_encoder(tmp_path / "headless", "bert", "embedding")
    with refused("models.reward", "BertModel"):
        check_known_models(headless)
    check_known_models(save_encoder(tmp_path / "one", "bert", "reward"))


def test_a_head_of_the_models_own_code_may_have_any_name(tmp_path: Path) -> None:
    folder = save_encoder(tmp_path / "own", "bert", "reward", labels=2)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"architectures": ["BertRater"]}))
    with refused("models.reward", "BertRater"):
        check_known_models(folder, label=1)
    check_known_models(folder, remote_code=True, label=1)
    with refused("models.reward", "2"):
        check_known_models(folder, remote_code=True)


def test_a_model_of_the_hub_is_known_by_its_local_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check_known_models("org/rater")  # nothing is known of it: the loading says so
    copy = tmp_path / "models--org--rater"
    (copy / "refs").mkdir(parents=True)
    (copy / "refs" / "main").write_text("c0ffee")
    (copy / "snapshots" / "c0ffee").mkdir(parents=True)
    content = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (copy / "snapshots" / "c0ffee" / "config.json").write_text(json.dumps(content))
    with refused("models.reward", r"car\.model.*org/rater.*LlamaForCausalLM"):
        check_known_models("org/rater")
