"""Files of a model that are not what they should be: one readable message each, before and while it is loaded."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateau_dagster.config import ModelConfig
from gateau_dagster.errors import GateauError
from gateau_dagster.models.loading import load_model
from gateau_dagster.models.model_files import check_model_files
from tests.project import write_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    write_model(folder, seed=0)
    return folder


@pytest.fixture
def tiny(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def changed(**sizes: Any) -> Callable[[Path], None]:
    """Writes other sizes into config.json."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **sizes}))

    return change


def holding(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (holding("tokenizer.json", "[1, 2]"), r"tokenizer\.json contains a list, not an object"),
        (holding("tokenizer.json", "version https://git-lfs.github.com/spec/v1"), r"tokenizer\.json is not JSON .*lfs"),
        (holding("tokenizer_config.json", "null"), r"tokenizer_config\.json contains a NoneType"),
        (holding("config.json", "[]"), r"config\.json contains a list"),
        (holding("config.json", "[" * 100_000), r"config\.json is not JSON"),
        (without("config.json"), r"has no config\.json"),
        (changed(num_attention_heads=0), r"num_attention_heads: '0'; expected a whole number from 1"),
        (changed(num_attention_heads="two"), r"num_attention_heads: 'two'"),
        (changed(hidden_size=16.5), r"hidden_size: '16\.5'"),
        (changed(hidden_size={"a": 1}), r"hidden_size"),
        (changed(vocab_size=-1), r"vocab_size: '-1'"),
        (changed(max_position_embeddings="long"), r"max_position_embeddings: 'long'"),
        (changed(hidden_size=10**9), r"hidden_size: '1000000000'"),
        (changed(n_layer=1_000_000), r"1000000 layers"),
        (changed(num_key_value_heads=True), r"num_key_value_heads: 'True'"),
        (changed(num_hidden_layers=1_000_000), r"1000000 layers, but the weights hold \d+ tensors"),
        (changed(text_config={"num_hidden_layers": 1_000_000}), r"1000000 layers"),
    ],
)
def test_damage_is_told(tiny: Path, damage: Callable[[Path], None], message: str) -> None:
    check_model_files(tiny, "models.long.path")
    damage(tiny)
    with pytest.raises(GateauError, match=rf"^models\.long\.path: .*{message}"):
        check_model_files(tiny, "models.long.path")


@pytest.mark.parametrize(
    "damage",
    [
        holding("tokenizer.json", "[1, 2]"),
        holding("config.json", "[]"),
        changed(num_attention_heads=0),
        changed(hidden_size={"a": 1}),
        changed(num_hidden_layers=1_000_000),
    ],
)
def test_loading_what_is_damaged_is_one_message(tiny: Path, damage: Callable[[Path], None]) -> None:
    damage(tiny)
    with pytest.raises(GateauError, match="tiny"):
        load_model(ModelConfig(path=str(tiny)), dtype="float32", device="cpu", folder=Path())


def test_sizes_of_an_architecture_s_own_are_left_to_it(tiny: Path) -> None:
    changed(num_key_value_heads=[1, 2], num_attention_heads=None, max_position_embeddings=-1)(tiny)
    check_model_files(tiny, "models.long.path")
