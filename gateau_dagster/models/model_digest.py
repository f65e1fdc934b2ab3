"""Identify a model by one digest: its hub revision, or the content of its folder."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from gateau_dagster.config import Config, ModelConfig
from gateau_dagster.config.base import Verify, made_files
from gateau_dagster.errors import GateauError, TransientError
from gateau_dagster.storage.failures import hub_model_failure, readable_input, said
from gateau_dagster.storage.local import recall_all, remember_all

_SECONDS_FOR_A_FILE = 3.0
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Files in a model's folder that do not change a score.
_REMARKS = {".md", ".png", ".jpg", ".gif", ".svg", ".pdf", ".log"}
_RECORDS = {"training_log.json", "gateau.json", "trainer_state.json"}


def model_digest(config: Config, name: str) -> str:
    """Return the digest of a configured model's weights, configuration and tokenizer.

    A folder's content hash is cached by size and time of each file. New weights at the same path count, and unchanged
    ones are not read again. With `verify: content` they are read each time. The demo's models are identified by their
    recipe, so they need not exist yet. A model that the pipeline makes has the digest of the model that it is made
    from; the store identifies its result.

    Raises:
        GateauError: there is no such folder, or the hub does not know the name.
        TransientError: the hub cannot be reached and no copy of the model is in the local cache.
    """
    model = config.models[name]
    if model.base is not None:
        return f"made:{model_digest(config, model.base)}"
    return address_digest(config, model, place=f"models.{name}")


def address_digest(config: Config, model: ModelConfig, *, place: str) -> str:
    """Return the digest of a model that already exists; `place` is its section in the configuration, for messages.

    Raises GateauError and TransientError as `model_digest` does.
    """
    if (maker := made_files(config, model.path)) is not None:
        return maker.digest(config, model.path)
    folder = config.folder / Path(model.path).expanduser()
    if folder.is_dir():
        return f"folder:{folder_digest(folder, config.work_folder / 'cache' / 'model_digests.json', model.verify)}"
    if not _HUB_NAME.fullmatch(model.path):
        raise GateauError(
            "models.no_folder",
            f"{place}.path: there is no folder {folder}. Give a folder with config.json and safetensors weights, "
            "or a name on the Hugging Face hub such as meta-llama/Llama-2-7b-hf.",
        )
    return f"hub:{model.path}:{_hub_commit(model.path, model.revision, place)}"


def folder_digest(folder: Path, cache_file: Path, verify: Verify = "signature") -> str:
    """Return the SHA-256 over names and contents of a folder's files.

    Hidden files, documentation and training records are left out. `cache_file` remembers contents by size and
    modification time; `verify`: whether that is enough.
    """
    total, known, new = hashlib.sha256(), recall_all(cache_file), {}
    for file in model_files(folder):
        relative, status = file.relative_to(folder), file.stat()
        key = f"{file.absolute()}|{status.st_size}|{status.st_mtime_ns}"
        digest = known.get(key) if verify == "signature" else None
        if digest is None:
            digest = new[key] = _file_digest(file)
        total.update(f"{relative.as_posix()}\0{digest}\n".encode())
    if new:
        remember_all(cache_file, new)
    return total.hexdigest()[:32]


def model_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a model's folder that count, sorted."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if not (hidden or file.suffix.lower() in _REMARKS or file.name in _RECORDS):
            yield file


def _file_digest(file: Path) -> str:
    with readable_input(str(file)), file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hub_commit(name: str, revision: str | None, place: str) -> str:
    """Return the commit of a hub name; from the local cache if the hub cannot be reached."""
    from httpx2 import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    from gateau_dagster.storage.hub_client import prepare_hub

    prepare_hub()
    try:
        commit = HfApi().model_info(name, revision=revision).sha
    except HFValidationError as error:
        raise GateauError(
            "hub.not_found",
            f"{place}.path: {name} is neither a folder on this machine nor a valid name on the hub ({error}): "
            "correct it.",
        ) from error
    except (HTTPError, OSError) as error:
        refusal = hub_model_failure(error, place=place, name=name, revision=revision)
        if refusal is not None and not isinstance(refusal, TransientError):
            raise refusal from error
        commit = _cached_commit(name, revision)
        if commit is None:
            is_offline = "Offline" in type(error).__name__
            first = "HF_HUB_OFFLINE is set: unset it, " if is_offline else "Check the network, "
            unreachable = TransientError(
                "hub.unavailable",
                f"{place}.path: there is no folder {name} here, and the Hugging Face hub cannot be reached "
                f"({said(error)}). {first}correct the path, or download the model first: hf download {name}",
            )
            raise (refusal or unreachable) from error
    assert commit is not None
    return commit


def check_downloadable(model: ModelConfig, *, place: str) -> None:
    """Check that this account may download a model that is not on this machine; fetches config.json.

    Raises:
        GateauError: the account may not, and a retry would not help. An unreachable hub raises nothing.
    """
    from huggingface_hub import hf_hub_download

    from gateau_dagster.storage.hub_client import prepare_hub

    prepare_hub()
    try:
        hf_hub_download(model.path, "config.json", revision=model.revision, etag_timeout=_SECONDS_FOR_A_FILE)
    except Exception as error:  # each client below raises its own types
        refusal = hub_model_failure(error, place=place, name=model.path, revision=model.revision)
        if refusal is not None and not isinstance(refusal, TransientError):
            raise refusal from error


def _cached_commit(name: str, revision: str | None) -> str | None:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    if revision is not None and (folder / "snapshots" / revision).is_dir():
        return revision  # a commit, not a branch or tag
    refs = folder / "refs" / (revision or "main")
    return refs.read_text().strip() if refs.is_file() else None
