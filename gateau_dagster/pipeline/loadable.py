"""Where a configured model can be loaded from, and which version of it that is."""

from pathlib import Path

from gateau_dagster.config import ModelConfig
from gateau_dagster.pipeline.made_models import made_asset
from gateau_dagster.pipeline.model_checks import check_folder
from gateau_dagster.pipeline.state import State
from gateau_dagster.storage.documents import verify_folder
from gateau_dagster.storage.files import local_copy


def loadable_model(state: State, name: str) -> ModelConfig:
    """The model's section with a real path; one that the pipeline makes is fetched from a store that is not local.

    Raises:
        GateauError, TransientError: it cannot be fetched, or its files are damaged.
    """
    config, section = state.config, state.config.located_model(name)
    if section.base is None:
        check_folder(config, name, state.model_digests[name])  # for a step that is launched by hand nobody has planned
        return section
    made = made_asset(config, name)
    folder = verify_folder(state.store, made, fetched(state, made, model_version(state, name)))
    code = section.trust_remote_code or config.models[section.base].trust_remote_code
    # It is an ordinary model from here on: nothing is left to be made.
    found = {"path": str(folder), "trust_remote_code": code, "pre_experience": None, "homologous": None}
    return section.model_copy(update=found)


def fetched(state: State, name: str, version: str) -> Path:
    """The folder of a model of the store; a download is kept for the steps to come.

    Raises:
        GateauError, TransientError: it cannot be fetched.
    """
    files, scratch = state.store.files, state.config.work_folder / "models"
    note = scratch / f"{name}.version"
    if not files.is_local and note.is_file() and note.read_text() == version:
        return scratch / name
    note.unlink(missing_ok=True)
    folder = local_copy(files, name, scratch)
    if not files.is_local:
        note.write_text(version)
    return folder


def model_version(state: State, name: str) -> str:
    """Changes with the weights that are loaded."""
    if state.config.models[name].base is None:
        return state.model_digests[name]
    made = state.stamp(made_asset(state.config, name), None)
    assert made is not None, "the stamp of the table that it computes names its content"
    return made.content
