"""Loading from a folder, its rotary base replaced if asked for; one readable message for each way in which it fails."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM, CpmAntConfig, T5Config, T5Model

from gateau_dagster.config import Config, ModelConfig, ScoringConfig
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.features.demo.config import DemoConfig
from gateau_dagster.features.demo.prepare import embedded_demo
from gateau_dagster.models import loading
from gateau_dagster.models import model_digest as module
from gateau_dagster.models.loaded import LoadedModel
from gateau_dagster.models.loading import effective_max_length, load_model
from gateau_dagster.models.model_config import Label, check_architecture, label_index
from gateau_dagster.models.model_digest import folder_digest, model_digest
from tests.kit.error_codes import refused
from tests.kit.local_server import QuietHandler, served
from tests.kit.project import change_config, command_environment, make_project
from tests.kit.tiny_models import encoder, loaded_model, save_encoder, tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Llama in `models/tiny`."""
    folder = tmp_path_factory.mktemp("saved")
    save(folder / "models" / "tiny", loaded_model("llama", max_position_embeddings=256).model)
    return folder


def save(folder: Path, model: Any) -> Path:
    """Write a model and the tests' tokenizer."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(saved: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(saved / "models" / "tiny", tmp_path / "tiny"))


def _load(path: str | Path, folder: Path = Path(), dtype: Any = "float32", **changes: Any) -> LoadedModel:
    return load_model(ModelConfig(path=str(path), **changes), dtype=dtype, device="cpu", folder=folder)


def test_folder_is_relative_to_the_configuration_file(saved: Path) -> None:
    loaded = _load("models/tiny", saved)
    assert loaded.name == "models/tiny" and loaded.device == torch.device("cpu") and loaded.window == 256
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.dtype == torch.float32 and loaded.tokenizer.bos_token_id == 0
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(loaded.model(ids).logits, loaded_model("llama").model(ids).logits)
    half = _load("models/tiny", saved, dtype="bfloat16", window=64)
    assert half.model.dtype == torch.bfloat16 and half.window == 64


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("./nowhere", "nowhere does not exist"),
        ("/nowhere/at all", "/nowhere/at all does not exist"),
        ("a/b/c", "a/b/c does not exist"),
        ("models", "not a model folder: it has no config.json"),
        ("models/tiny/config.json", "is a file"),
    ],
)
def test_wrong_paths_are_named(saved: Path, path: str, message: str) -> None:
    with pytest.raises(GateauError, match=message):
        _load(path, saved)


RealApi = huggingface_hub.HfApi


def test_hub_out_of_reach(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("hub.unavailable", "some/model.*v2.*HF_TOKEN"):
        _load("some/model", saved, revision="v2")


def changed(**sizes: Any) -> Callable[[Path], None]:
    """Return what writes other sizes into config.json."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **sizes}))

    return change


def holding(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text)


def without(*names: str) -> Callable[[Path], Any]:
    return lambda folder: [(folder / name).unlink() for name in names]


def halved(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def incomplete(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "code", "facts"),
    [
        (holding("config.json", "{"), "models.file_damaged", r"config\.json"),
        (holding("config.json", '{"model_type": "no_such_model"}'), "models.file_damaged", "no_such_model"),
        (without("tokenizer.json", "tokenizer_config.json"), "models.no_tokenizer", r"tokenizer\.json"),
        (holding("tokenizer_config.json", "{"), "models.not_loadable", None),
        (without("model.safetensors"), "models.not_loadable", None),
        (halved, "models.not_loadable", None),
        (pickled, "models.not_loadable", r"\.bin"),
        (incomplete, "models.incomplete", r"model\.layers\.1\.mlp\.up_proj\.weight"),
    ],
)
def test_what_is_damaged_or_missing_is_named(
    tiny: Path, damage: Callable[[Path], Any], code: str, facts: str | None
) -> None:
    damage(tiny)
    with refused(code, facts):
        _load(tiny)


_SIZES: dict[str, Any] = {"vocab_size": 400, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_BERT: dict[str, Any] = {**_SIZES, "intermediate_size": 16}
_CPM: dict[str, Any] = {**_SIZES, "dim_head": 8, "dim_ff": 16}


def test_model_that_is_no_decoder(tmp_path: Path) -> None:
    save(tmp_path, BertForMaskedLM(BertConfig(**_BERT)))
    with refused("models.not_causal", "BertForMaskedLM"):
        _load(tmp_path)


@pytest.mark.parametrize("config", [BertConfig(**_BERT), CpmAntConfig(**_CPM)], ids=lambda config: config.model_type)
def test_decoder_that_sees_what_follows(config: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config.init_std = config.initializer_range = 0.15
    save(tmp_path, AutoModelForCausalLM.from_config(config))
    with refused("models.not_causal", f"{config.model_type}.*Llama"):
        _load(tmp_path)
    if config.model_type == "bert":
        content = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(content | {"is_decoder": True}))
        assert _load(tmp_path).model.config.is_decoder


def test_out_of_memory_while_loading(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12 GiB")

    monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", full)
    with refused("models.too_large", r"scoring\.dtype.*bfloat16"):
        _load(tiny)


def test_effective_max_length() -> None:
    loaded, scoring = loaded_model("llama"), ScoringConfig(max_length=5000)
    assert effective_max_length(loaded, ModelConfig(path="x"), scoring) == 5000
    assert effective_max_length(loaded, ModelConfig(path="x", context="window"), scoring) == 2048
    short = ScoringConfig(max_length=100)
    assert effective_max_length(loaded, ModelConfig(path="x", context="window"), short) == 100


def test_learned_positions_are_not_read_beyond_their_table() -> None:
    loaded = loaded_model("gpt2")
    with refused("models.positions", r"2048.*scoring\.max_length.*4096"):
        effective_max_length(loaded, ModelConfig(path="x"), ScoringConfig(max_length=4096))
    assert effective_max_length(loaded, ModelConfig(path="x"), ScoringConfig(max_length=2048)) == 2048
    wide = ModelConfig(path="x", context="window", window=4096)
    loaded = replace(loaded, window=4096)
    with refused("models.positions", "4096.*2048"):
        effective_max_length(loaded, wide, ScoringConfig(max_length=8192))
    assert effective_max_length(loaded, wide, ScoringConfig(max_length=1000)) == 1000


def test_window_must_be_known_when_it_is_used(tmp_path: Path) -> None:
    save(tmp_path, loaded_model("bloom").model)
    assert _load(tmp_path).window is None
    with refused("models.window"):
        _load(tmp_path, context="window")
    assert _load(tmp_path, context="window", window=99).window == 99


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral"])
def test_override_changes_the_frequencies_and_the_logits(kind: str, tmp_path: Path) -> None:
    save(tmp_path, loaded_model(kind).model)
    plain, changed = _load(tmp_path), _load(tmp_path, rope_theta=2_000_000)
    frequencies = changed.model.get_buffer("model.rotary_emb.inv_freq")
    torch.testing.assert_close(frequencies, 2_000_000 ** -(torch.arange(0, 16, 2) / 16))  # θ^(-2i/d)
    assert not torch.equal(frequencies, plain.model.get_buffer("model.rotary_emb.inv_freq"))
    ids = torch.randint(0, 400, (1, 200), generator=torch.Generator().manual_seed(0))
    far = (plain.model(ids).logits - changed.model(ids).logits).abs().amax(dim=-1)[0]
    assert far[0] < 1e-4 and far[150:].min() > 1e-2  # position 0 is not rotated
    assert plain.window == changed.window == 2048


def test_override_keeps_a_scaling_rule(tmp_path: Path) -> None:
    rule = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}
    save(tmp_path, loaded_model("llama", rope_parameters=rule).model)
    changed = _load(tmp_path, rope_theta=500_000)
    want = 500_000 ** -(torch.arange(0, 16, 2) / 16) / 4
    torch.testing.assert_close(changed.model.get_buffer("model.rotary_emb.inv_freq"), want)


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
        _load(tiny)


Answer = tuple[int, dict[str, str]]
INFO = b'{"id": "lab/model", "sha": "%s", "siblings": [], "tags": []}' % (b"1" * 40)


def code(status: int, name: str) -> Answer:
    return status, {"X-Error-Code": name}


OPEN: Answer = (200, {})
DISABLED: Answer = (403, {"X-Error-Message": "Access to this resource is disabled."})
ENTRY = code(404, "EntryNotFound")
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}
IS_GATED = r"gated .*HUB/lab/model-., accept its terms.*HF_TOKEN"
IS_UNKNOWN = r"neither a folder on this machine nor a model on the hub.*private.*HF_TOKEN"
CASES: dict[str, tuple[Answer, Answer, str]] = {
    "files gated, no token": (OPEN, code(401, "GatedRepo"), IS_GATED),
    "files gated, no consent": (OPEN, code(403, "GatedRepo"), IS_GATED),
    "all gated": (code(403, "GatedRepo"), code(403, "GatedRepo"), IS_GATED),
    "unknown": (code(404, "RepoNotFound"), ENTRY, IS_UNKNOWN),
    "revision": (code(404, "RevisionNotFound"), ENTRY, r"short\.revision: .*no branch, tag or commit main"),
    "no config.json": (OPEN, ENTRY, r"has no config\.json"),
    "disabled": (DISABLED, DISABLED, r"has disabled lab/model"),
    "bad token": ((401, BAD_TOKEN), ENTRY, r"refuses lab/model.*401.*HF_TOKEN"),
    "rate limit": ((429, {}), (429, {}), r"limits requests.*429.*later"),
    "fails": ((503, {}), (503, {}), r"hub fails .*503.*later"),
}


class Hub(QuietHandler):
    """Answers about the model lab/model-N as the case N says, of the model itself and of its files."""

    def do_GET(self) -> None:
        info, files, _ = list(CASES.values())[int(re.findall(r"lab/model-(\d+)", self.path)[0])]
        status, headers = info if self.path.startswith("/api/") else files
        body = INFO if status == 200 else b"{}"
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET


PROGRAM = """
import sys, time
import huggingface_hub.utils._http as client
from gateau_dagster.errors import GateauError
from gateau_dagster.pipeline.checks import checks_of
from gateau_dagster.pipeline.observed import state_of
from gateau_dagster.pipeline.project import load_project
time.sleep = lambda seconds: None
for file in sys.argv[1:]:
    try:
        checks_of(state_of(config=load_project(file))).check_models()
    except GateauError as error:
        print(type(error).__name__, " ".join(str(error).split()), flush=True)
    else:
        print("nothing was said", flush=True)
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the check of the models says in each case, with HUB for the address of the hub.

    One process of its own for all of them, since huggingface_hub reads its end point when it is imported.
    """
    folder = tmp_path_factory.mktemp("hub")
    project = make_project(folder / "project", samples=2, shards=1)
    files: list[str] = []
    for number in range(len(CASES)):
        file = project.with_name(f"case{number}.yaml")
        file.write_bytes(project.read_bytes())
        model = {"path": f"lab/model-{number}", "context": "window", "window": 64}
        change_config(file, models={"short": model})
        files.append(str(file))
    with served(ThreadingHTTPServer(("127.0.0.1", 0), Hub)) as port:
        address = f"http://127.0.0.1:{port}"
        environment = command_environment(HF_ENDPOINT=address, HF_HOME=str(folder / "home"), HF_HUB_OFFLINE="0")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *files], env=environment, capture_output=True, text=True, check=True
        )
    lines = done.stdout.replace(address, "HUB").splitlines()
    return dict(zip(CASES, lines, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_each_answer_is_told_before_anything_is_scored(told: dict[str, str], case: str) -> None:
    assert re.search(CASES[case][2], told[case]), told[case]
    assert "models.short." in told[case]
    again = case in {"rate limit", "fails"}
    assert told[case].startswith("TransientError" if again else "GateauError"), "whether trying again can help"


def configured(folder: Path, **model: str) -> Config:
    models = {"short": {"path": "short", **model}, "long": {"path": "long"}}
    return Config.model_validate({"long_sft": {"path": "x"}, "models": models, "folder": folder})


def write_files(folder: Path, weights: bytes = b"weights") -> None:
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "vocab.txt").write_text("a b")


def test_new_weights_at_the_same_path_count(tmp_path: Path) -> None:
    write_files(tmp_path / "short")
    before = model_digest(configured(tmp_path), "short")
    assert before.startswith("folder:")
    write_files(tmp_path / "short", b"WEIGHTS")
    assert model_digest(configured(tmp_path), "short") != before
    write_files(tmp_path / "short", b"weights")
    assert model_digest(configured(tmp_path), "short") == before, "the content counts, not the time"


def test_a_moved_folder_is_the_same_model(tmp_path: Path) -> None:
    for name in ("short", "long"):
        write_files(tmp_path / name)
    config = configured(tmp_path)
    assert model_digest(config, "short") == model_digest(config, "long")
    (tmp_path / "long" / "config.json").rename(tmp_path / "long" / "other.json")
    assert model_digest(config, "short") != model_digest(config, "long")


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "short")
    read: list[str] = []
    real = module._file_digest
    monkeypatch.setattr(module, "_file_digest", lambda file: (read.append(file.name), real(file))[1])
    cache = tmp_path / "cache.json"
    first = folder_digest(tmp_path / "short", cache)
    assert sorted(read) == ["config.json", "model.safetensors", "vocab.txt"]
    read.clear()
    assert folder_digest(tmp_path / "short", cache) == first and read == []
    status = (tmp_path / "short" / "config.json").stat()
    os.utime(tmp_path / "short" / "config.json", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert folder_digest(tmp_path / "short", cache) == first and read == ["config.json"]
    (tmp_path / "short" / ".git").mkdir()
    (tmp_path / "short" / ".git" / "HEAD").write_text("x")
    assert folder_digest(tmp_path / "short", cache) == first, "hidden files do not count"
    assert json.loads(cache.read_text())


def test_weights_of_the_same_size_and_time_count_where_contents_are_read(tmp_path: Path) -> None:
    write_files(tmp_path / "short")
    weights = tmp_path / "short" / "model.safetensors"
    trusting, reading = configured(tmp_path), configured(tmp_path, verify="content")
    before = model_digest(trusting, "short")
    assert model_digest(reading, "short") == before
    status = weights.stat()
    weights.write_bytes(b"WEIGHTS")
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert model_digest(trusting, "short") == before
    after = model_digest(reading, "short")
    assert after != before
    assert model_digest(trusting, "short") == after, "and is known from then on"


@pytest.mark.parametrize("path", ["no_such_folder", "./a/b", "/no/such", "~/nothing", "a/b/c"])
def test_a_missing_folder_is_named(tmp_path: Path, path: str) -> None:
    with refused("models.no_folder", r"models\.short\.path.*config\.json"):
        model_digest(configured(tmp_path, path=path), "short")


def test_the_demo_s_models_need_not_exist_yet(tmp_path: Path) -> None:
    config = embedded_demo(tmp_path, DemoConfig(seed=4))
    assert "seed4" in model_digest(config, "short")
    assert model_digest(config, "short") != model_digest(config, "long")


class Api:
    """What HfApi says, without the hub."""

    answer: str | Exception = "commit1"

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []

    def model_info(self, name: str, revision: str | None = None) -> object:
        self.asked.append((name, revision))
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(sha=self.answer)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    found = Api()
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return found


def test_a_hub_model_is_its_commit(tmp_path: Path, hub: Api) -> None:
    config = configured(tmp_path, path="org/model", revision="v1")
    assert model_digest(config, "short") == "hub:org/model:commit1"
    assert hub.asked == [("org/model", "v1")]
    hub.answer = "commit2"
    assert model_digest(config, "short") == "hub:org/model:commit2"


def test_offline_the_cached_commit_is_used(tmp_path: Path, hub: Api) -> None:
    hub.answer = ConnectionError("no network")
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("cached\n")
    assert model_digest(configured(tmp_path, path="org/model"), "short") == "hub:org/model:cached"


@pytest.mark.parametrize("offline", [False, True])
def test_offline_without_a_copy_the_way_out_is_named(
    tmp_path: Path, hub: Api, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.answer = ConnectionError("no network")
    if offline:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub, "HfApi", RealApi)
    with pytest.raises(TransientError, match=r"models\.short\.path: .*cannot be reached.*hf download org/model"):
        model_digest(configured(tmp_path, path="org/model"), "short")


def test_a_name_that_is_none_on_the_hub_is_told(tmp_path: Path, hub: Api) -> None:
    hub.answer = HFValidationError("bad name")
    with pytest.raises(GateauError, match="nor a valid name on the hub") as failure:
        model_digest(configured(tmp_path, path="org/model"), "short")
    assert not isinstance(failure.value, TransientError), "trying again cannot help"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`reward` and `embedding`, tiny BERTs."""
    folder = tmp_path_factory.mktemp("encoders")
    save_encoder(folder / "reward", "bert", "reward")
    save_encoder(folder / "embedding", "bert", "embedding")
    return folder


def test_a_reward_model_and_an_encoder_are_ready_to_read(folders: Path) -> None:
    for task in ("reward", "embedding"):
        loaded = encoder(folders / task, task)
        assert loaded.device == torch.device("cpu") and loaded.window == 128 and loaded.model.dtype == torch.float32
        assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())


def test_the_window_is_the_smallest_limit(folders: Path, tmp_path: Path) -> None:
    assert encoder(folders / "embedding", "embedding", window=50).window == 50
    assert encoder(folders / "embedding", "embedding", window=500).window == 128, "there are no further positions"
    roberta = save_encoder(tmp_path / "roberta", "roberta", "embedding", pad_token_id=3)
    assert encoder(roberta, "embedding").window == 128 - 4, "positions begin behind the padding's"
    limited = tokenizer().__class__.from_pretrained(roberta, model_max_length=60)
    limited.save_pretrained(roberta)
    assert encoder(roberta, "embedding").window == 60
    assert encoder(save_encoder(tmp_path / "llama", "llama", "embedding"), "embedding").window == 2048


def test_a_model_without_the_head_is_no_reward_model(folders: Path, tmp_path: Path) -> None:
    with refused("models.reward", "BertModel"):
        encoder(folders / "embedding", "reward")
    save(tmp_path, loaded_model("llama").model)
    with refused("models.reward", "LlamaForCausalLM"):
        encoder(tmp_path, "reward")


def test_a_head_that_was_not_saved_is_not_filled_with_random_numbers(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders / "reward", tmp_path / "reward"))
    weights = {name: one for name, one in load_file(folder / "model.safetensors").items() if "classifier" not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with refused("models.incomplete", r"classifier\.bias.*classifier\.weight"):
        encoder(folder, "reward")


def test_an_encoder_may_lack_its_pooler_and_nothing_else(folders: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders / "embedding", tmp_path / "embedding"))
    weights = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in weights.items() if not name.startswith("pooler.")}
    assert len(kept) == len(weights) - 2
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    encoder(folder, "embedding")
    del kept["encoder.layer.1.output.dense.weight"]
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with refused("models.incomplete", r"encoder\.layer\.1\.output\.dense\.weight"):
        encoder(folder, "embedding")


def test_what_cannot_be_loaded_is_said(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("models.no_folder", "/nowhere/at"):
        encoder(Path("/nowhere/at all"), "embedding")
    folder = Path(shutil.copytree(folders / "embedding", tmp_path / "broken"))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with refused("models.no_tokenizer"):
        encoder(folder, "embedding")
    (folder / "config.json").write_text("{")
    with refused("models.file_damaged", r"config\.json"):
        encoder(folder, "embedding")
    (folders / "embedding" / "model.safetensors").rename(tmp_path / "weights")
    with refused("models.not_loadable"):
        encoder(folders / "embedding", "embedding")
    (tmp_path / "weights").rename(folders / "embedding" / "model.safetensors")
    with refused("models.no_rotary"):
        encoder(folders / "embedding", "embedding", rope_theta=100.0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("hub.unavailable", "some/model.*v2.*HF_TOKEN"):
        encoder(Path("some/model"), "reward", revision="v2")


def test_an_encoder_decoder_is_refused(tmp_path: Path) -> None:
    config = T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    save(tmp_path, T5Model(config))
    with refused("models.task", "t5"):
        encoder(tmp_path, "embedding")


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
