"""Each rule for a model's files refuses a folder with one fault, and accepts one without."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gateau_dagster.config import ModelConfig
from gateau_dagster.models.model_facts import ModelFacts, facts_in
from gateau_dagster.models.model_rules import FILE_RULES, Service, check_objects, check_weights
from tests.kit.error_codes import refused
from tests.kit.tiny_models import loaded_model, tokenizer

Damage = Callable[[Path], object]
"""It changes a model's folder."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama."""
    folder = tmp_path_factory.mktemp("saved")
    loaded_model("llama", max_position_embeddings=256).model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def facts(folder: Path, *, remote_code: bool = False) -> ModelFacts:
    return facts_in(folder, path=str(folder), remote_code=remote_code)


def check(folder: Path, **section: Any) -> None:
    service = Service(section=ModelConfig(path=str(folder), **section), scoring=None, whole=True)
    for rule in FILE_RULES:
        if rule.applies(service):
            rule.check(facts(folder, remote_code=section.get("trust_remote_code", False)), service)


def edited(file: str, **keys: object) -> Damage:
    return lambda folder: (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **keys}))


def sized(**keys: object) -> Damage:
    return edited("config.json", **keys)


def holding(file: str, content: str) -> Damage:
    return lambda folder: (folder / file).write_text(content)


def with_index(content: str) -> Damage:
    return holding("model.safetensors.index.json", content)


def without(files: str) -> Damage:
    return lambda folder: [file.unlink() for file in folder.glob(files)]


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


HALF = '{"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}'
DAMAGED = {
    r"tokenizer\.json contains a list, not an object": holding("tokenizer.json", "[1, 2]"),
    r"tokenizer\.json is not JSON .*lfs": holding("tokenizer.json", "version https://git-lfs.github.com/spec/v1"),
    r"tokenizer_config\.json contains a NoneType": holding("tokenizer_config.json", "null"),
    r"config\.json contains a list": holding("config.json", "[]"),
    r"config\.json is not JSON": holding("config.json", "[" * 100_000),
    r"num_attention_heads: '0'; expected a whole number from 1": sized(num_attention_heads=0),
    r"num_attention_heads: 'two'": sized(num_attention_heads="two"),
    r"hidden_size: '16\.5'": sized(hidden_size=16.5),
    r"hidden_size: ": sized(hidden_size={"a": 1}),
    r"vocab_size: '-1'": sized(vocab_size=-1),
    r"max_position_embeddings: 'long'": sized(max_position_embeddings="long"),
    r"hidden_size: '1000000000'": sized(hidden_size=10**9),
    r"num_key_value_heads: 'True'": sized(num_key_value_heads=True),
    r"1000001 layers": sized(n_layer=1_000_001),
    r"1000000 layers, but the weights hold \d+ tensors": sized(num_hidden_layers=1_000_000),
    r"1000002 layers": sized(text_config={"num_hidden_layers": 1_000_002}),
    r"index\.json is not JSON": with_index("{"),
    r"cannot read the tokenizer in": holding("tokenizer.json", "{}"),
    r"cannot read the config\.json in": holding("config.json", '{"model_type": []}'),
    r"cannot read the config\.json in .*of no kind": holding("config.json", '{"model_type": "of no kind"}'),
    r"tokenizer .*LlamaForCausalLM": edited("tokenizer_config.json", tokenizer_class="LlamaForCausalLM"),
    r"tokenizer .*LlamaConfig": edited("tokenizer_config.json", tokenizer_class="LlamaConfig"),
}
OTHERS = [
    ("models.incomplete", r"has no config\.json", without("config.json")),
    ("models.incomplete", "has no weights", without("*.safetensors")),
    ("models.incomplete", r"1 of the 2 files of its weights, such as model-2\.safetensors", with_index(HALF)),
    ("models.incomplete", "names no files", with_index("{}")),
    ("models.incomplete", "names no files", with_index('{"weight_map": {"a": 1}}')),
    ("models.no_tokenizer", "has no tokenizer", without("tokenizer*")),
    ("models.pickled", r"has \.bin files only", pickled),
    ("models.not_causal", "is a BertForMaskedLM", sized(model_type="bert", architectures=["BertForMaskedLM"])),
]


@pytest.mark.parametrize(
    ("code", "message", "damage"),
    [*(("models.file_damaged", message, damage) for message, damage in DAMAGED.items()), *OTHERS],
)
def test_a_folder_with_one_fault_is_refused(tiny: Path, code: str, message: str, damage: Damage) -> None:
    check(tiny)
    damage(tiny)
    with refused(code, message):
        check(tiny)


@pytest.mark.parametrize(
    "change",
    [
        with_index('{"weight_map": {"a": "model.safetensors"}}'),
        edited("tokenizer_config.json", model_max_length=99),
        without("generation_config.json"),
    ],
)
def test_a_folder_without_a_fault_is_accepted(tiny: Path, change: Damage) -> None:
    change(tiny)
    check(tiny)


def test_bin_files_are_accepted_where_code_may_run(tiny: Path) -> None:
    pickled(tiny)
    check(tiny, trust_remote_code=True)


def test_sizes_of_an_architecture_s_own_are_left_to_it(tiny: Path) -> None:
    sized(num_key_value_heads=[1, 2], num_attention_heads=None, max_position_embeddings=-1)(tiny)
    check_objects(facts(tiny))


def model(folder: Path, dtype: torch.dtype = torch.float32, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {"a.weight": torch.ones(4, 4).to(dtype), "a.bias": torch.zeros(4), "mask": torch.ones(2) > 0}
    save_file(tensors, folder / "model-1.safetensors")
    save_file({"b.weight": torch.ones(4)}, folder / "model-2.safetensors")
    return folder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
def test_weights_of_any_floating_point_type(tmp_path: Path, dtype: torch.dtype) -> None:
    check_weights(facts(model(tmp_path, dtype)))


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_whole_numbers_are_no_weights_unless_they_are_quantised(tmp_path: Path, dtype: torch.dtype) -> None:
    with refused("models.quantized", r"model-1\.safetensors .*a\.weight"):
        check_weights(facts(model(tmp_path, dtype)))
    check_weights(facts(model(tmp_path, dtype, quantization_config={"bits": 8})))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda data: data[:-3],
    "longer": lambda data: data + b"xx",
    "empty": lambda data: b"",
    "git-lfs": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
}


@pytest.mark.parametrize("config", [{}, {"quantization_config": {"bits": 8}}], ids=["plain", "quantised"])
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, config: dict[str, object]) -> None:
    file = model(tmp_path, **config) / "model-2.safetensors"  # pyright: ignore[reportArgumentType]
    file.write_bytes(DAMAGES[name](file.read_bytes()))
    with refused("models.file_damaged", r"model-2\.safetensors"):
        check_weights(facts(tmp_path))
    file.unlink()
    file.mkdir()
    with refused("models.file_damaged", r"model-2"):
        check_weights(facts(tmp_path))
