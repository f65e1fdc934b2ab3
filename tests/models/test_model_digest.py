import json
import os
from pathlib import Path

import pytest

from gateau_dagster.config import Config
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.models import model_digest as module
from gateau_dagster.models.model_digest import folder_digest, model_digest
from tests.error_codes import refused


def configured(folder: Path, **model: str) -> Config:
    models = {"short": {"path": "short", **model}, "long": {"path": "long"}}
    return Config.model_validate({"long_sft": {"path": "x"}, "models": models, "folder": folder})


def write_model(folder: Path, weights: bytes = b"weights") -> None:
    (folder / "sub").mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "vocab.txt").write_text("a b")


def test_new_weights_at_the_same_path_count(tmp_path: Path) -> None:
    write_model(tmp_path / "short")
    before = model_digest(configured(tmp_path), "short")
    assert before.startswith("folder:")
    write_model(tmp_path / "short", b"WEIGHTS")
    assert model_digest(configured(tmp_path), "short") != before
    write_model(tmp_path / "short", b"weights")
    assert model_digest(configured(tmp_path), "short") == before, "the content counts, not the time"


def test_a_moved_folder_is_the_same_model(tmp_path: Path) -> None:
    for name in ("short", "long"):
        write_model(tmp_path / name)
    config = configured(tmp_path)
    assert model_digest(config, "short") == model_digest(config, "long")
    (tmp_path / "long" / "config.json").rename(tmp_path / "long" / "other.json")
    assert model_digest(config, "short") != model_digest(config, "long")


def test_unchanged_files_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "short")
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


def test_weights_of_the_same_size_and_time_count_where_contents_are_read(tmp_path: Path) -> None:
    write_model(tmp_path / "short")
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


def test_hidden_files_do_not_count(tmp_path: Path) -> None:
    write_model(tmp_path / "short")
    before = folder_digest(tmp_path / "short", tmp_path / "cache.json")
    (tmp_path / "short" / ".git").mkdir()
    (tmp_path / "short" / ".git" / "HEAD").write_text("x")
    assert folder_digest(tmp_path / "short", tmp_path / "cache.json") == before
    assert json.loads((tmp_path / "cache.json").read_text())


@pytest.mark.parametrize("path", ["no_such_folder", "./a/b", "/no/such", "~/nothing", "a/b/c"])
def test_a_missing_folder_is_named(tmp_path: Path, path: str) -> None:
    with refused("models.no_folder", r"models\.short\.path.*config\.json"):
        model_digest(configured(tmp_path, path=path), "short")


def test_the_demo_s_models_need_not_exist_yet(tmp_path: Path) -> None:
    config = Config.model_validate(
        {
            "long_sft": {"path": "x"},
            "models": {"short": {"path": "demo:short"}, "long": {"path": "demo:long"}},
            "demo": {"seed": 4},
            "folder": tmp_path,
        }
    )
    assert model_digest(config, "short") != model_digest(config, "long")
    assert "seed4" in model_digest(config, "short")


class Hub:
    """What HfApi says, without the hub."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        import huggingface_hub.constants

        self.answer: str | Exception = "commit1"
        self.asked: list[tuple[str, str | None]] = []
        hub = self

        class Api:
            def model_info(self, name: str, revision: str | None = None) -> object:
                hub.asked.append((name, revision))
                if isinstance(hub.answer, Exception):
                    raise hub.answer
                return type("Info", (), {"sha": hub.answer})()

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    return Hub(monkeypatch, tmp_path)


def test_a_hub_model_is_its_commit(tmp_path: Path, hub: Hub) -> None:
    config = configured(tmp_path, path="org/model", revision="v1")
    assert model_digest(config, "short") == "hub:org/model:commit1"
    assert hub.asked == [("org/model", "v1")]
    hub.answer = "commit2"
    assert model_digest(config, "short") == "hub:org/model:commit2"


@pytest.mark.parametrize("rubbish", ["{", "[]", "\0"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, rubbish: str) -> None:
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "config.json").write_text("{}")
    cache = tmp_path / "cache.json"
    digest = folder_digest(tmp_path / "short", cache)
    cache.write_text(rubbish)
    assert folder_digest(tmp_path / "short", cache) == digest
    assert json.loads(cache.read_text())


def test_offline_the_cached_commit_is_used(tmp_path: Path, hub: Hub) -> None:
    hub.answer = ConnectionError("no network")
    refs = tmp_path / "hub" / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("cached\n")
    assert model_digest(configured(tmp_path, path="org/model"), "short") == "hub:org/model:cached"


def test_offline_without_a_copy_the_way_out_is_named(tmp_path: Path, hub: Hub) -> None:
    hub.answer = ConnectionError("no network")
    with pytest.raises(TransientError, match=r"models\.short\.path: .*cannot be reached.*hf download org/model"):
        model_digest(configured(tmp_path, path="org/model"), "short")


def test_offline_mode_itself_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(TransientError, match="cannot be reached"):
        model_digest(configured(tmp_path, path="org/model"), "short")


def test_unknown_names_and_revisions_are_told_apart(tmp_path: Path, hub: Hub) -> None:
    import httpx2
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    response = httpx2.Response(404, request=httpx2.Request("GET", "http://hub"))
    config = configured(tmp_path, path="org/model", revision="v9")
    for error, words in (
        (
            RepositoryNotFoundError("no", response=response),
            "neither a folder on this machine nor a model on the hub.*HF_TOKEN",
        ),
        (RevisionNotFoundError("no", response=response), r"models\.short\.revision: .*no branch, tag or commit v9"),
        (HFValidationError("bad name"), "nor a valid name on the hub"),
    ):
        hub.answer = error
        with pytest.raises(GateauError, match=words) as failure:
            model_digest(config, "short")
        assert not isinstance(failure.value, TransientError), "trying again cannot help"
