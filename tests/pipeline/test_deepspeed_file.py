"""A user's DeepSpeed file as the planner sees it: refused before any model runs, fingerprinted by what it comes to."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.errors import GateauError
from tests.pipeline.configured import configured, stale, versions
from tests.pipeline.fields import TRAINED

ZERO2: dict[str, Any] = {"zero_optimization": {"stage": 2}}
LONG = {"path": "homologous:short", "homologous": {"texts": "books", "length": 512, "tokens_per_step": 65_536}}


def written(folder: Path, **content: Any) -> str:
    (folder / "ds.json").write_text(json.dumps(ZERO2 | content))
    return "ds.json"


def test_a_file_that_contradicts_the_training_stops_the_planning(tmp_path: Path) -> None:
    for setting in (written(tmp_path, gradient_clipping=0.5), ZERO2 | {"gradient_clipping": 0.5}):
        with pytest.raises(
            GateauError, match=r"^training\.deepspeed: gradient_clipping is 0\.5, but training\.max_gra"
        ):
            versions(configured(tmp_path, **{"training.deepspeed": setting}))
        versions(configured(tmp_path, **{"training.deepspeed": setting, "training.max_grad_norm": 0.5}))


def test_so_does_one_that_contradicts_how_a_model_is_made(tmp_path: Path) -> None:
    setting = written(tmp_path, optimizer={"params": {"lr": 3e-5}})
    learning = {"training.deepspeed": setting, "training.learning_rate": 3e-5}
    versions(configured(tmp_path, **learning))
    theirs = r"optimizer\.params\.lr is 3e-05, but models\.{} gives {}\. "
    config = configured(tmp_path, **learning, **{"models.long": LONG})
    with pytest.raises(GateauError, match=theirs.format(r"long\.homologous\.learning_rate", "1e-05")):
        versions(config)
    config = configured(tmp_path, **learning, **{"models.cherry": {"path": "pre_experienced:long"}})
    with pytest.raises(GateauError, match=theirs.format(r"cherry\.pre_experience\.learning_rate", "2e-05")):
        versions(config)
    setting = written(tmp_path, gradient_accumulation_steps=12)
    config = configured(tmp_path, **{"training.deepspeed": setting, "models.cherry": {"path": "pre_experienced:long"}})
    with pytest.raises(GateauError, match=r"but models\.cherry\.pre_experience\.batch gives 128\. "):
        versions(config)


def test_what_is_said_twice_changes_nothing_and_what_deepspeed_does_counts(tmp_path: Path) -> None:
    def found(setting: Any) -> dict[Any, str]:
        return versions(configured(tmp_path, **{"training.deepspeed": setting}))

    bare, checkpoint = found(ZERO2), TRAINED - {"report"}
    assert not stale(bare, found(ZERO2 | {"gradient_clipping": 1.0})) - {"report"}
    assert not stale(bare, found(written(tmp_path, optimizer={"type": "AdamW"}))) - {"report"}
    stage3 = {"zero_optimization": {"stage": 3}}
    assert stale(bare, found(stage3)) - {"report"} == checkpoint
    assert stale(bare, found("zero2")) - {"report"} == checkpoint
