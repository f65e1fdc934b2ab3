"""What each table says it reads of the scoring prompt, against its rows: what it does not read must not change them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.data.sample import Reject
from gateau_dagster.methods.pre_experience import instruction_embedding_table
from gateau_dagster.methods.registry import sample_tables
from gateau_dagster.models.flops import ForwardWork
from gateau_dagster.models.loading import LoadedModel
from gateau_dagster.scoring.sample_table import Running, SampleTable
from tests.methods.configured import configured
from tests.scoring.scored import scoring
from tests.tiny_models import encoder, loaded_model, samples, save_encoder

OPENING = "Be helpful.\n\n"


def tables() -> Mapping[str, SampleTable]:
    models = {name: {"path": "a/b", "task": task} for name, task in (("reward", "reward"), ("enc", "embedding"))}
    config = configured(
        models=models,
        method="ladm",
        compare=["ifd", "car", "delta_perplexity", "longattn"],
        rule="diverse",
        encoder="enc",
        segment_lengths=[16],
        options={"ladm": {"span_length": 8, "first_scored": 6}, "delta_perplexity": {"segment_length": 16}},
    )
    embedding = instruction_embedding_table("long")
    return {**sample_tables(config), embedding.asset: embedding}


PROMPTS = {
    "quality/reward": "none",
    "embedding/enc": "none",
    "response_alone/long": "none",
    "instruction_embedding/long": "none",
    "span_attention/long": "plain",
    "segment_pairs/long": "plain",
    "long_attention/long": "plain",
    "cam_at/16": "opened",
}


def test_all_tables_are_here() -> None:
    assert {asset: table.prompt for asset, table in tables().items()} == PROMPTS


def rows(table: SampleTable, loaded: LoadedModel, template: str = "gateau") -> list[Any]:
    settings = scoring().model_copy(update={"template": template})
    running = Running(max_length=250, scoring=settings, work=ForwardWork(), visible_tokens=100)
    return list(table.score(loaded, samples()[:2], running))


@pytest.mark.parametrize("asset", PROMPTS)
def test_rows_hang_on_what_the_table_says(asset: str, tmp_path: Path) -> None:
    table = tables()[asset]
    if table.model == "long":
        loaded = loaded_model("llama")
    else:
        task: Any = "reward" if table.model == "reward" else "embedding"
        loaded = encoder(save_encoder(tmp_path, "bert", task), task)
    found = rows(table, loaded)
    assert (rows(table, replace(loaded, opening=OPENING)) == found) == (table.prompt != "opened")
    assert (rows(table, loaded, "chat") == found) == (table.prompt == "none")
    assert not any(isinstance(row, Reject) for row in found)
